"""manifest.json: the job of a store, its shards, and whether all of them are there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import refuse_newer
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.shards import ShardRecord
from starbucks_retrieval.store.spec import FORMAT, VERSION, StoreSpec


@dataclass(frozen=True)
class Manifest:
    """What manifest.json holds; `shards` is empty until the store is complete, and each shard speaks for itself."""

    FORMAT: ClassVar[str] = FORMAT
    spec: StoreSpec
    shards: list[ShardRecord]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "format": FORMAT,
            "version": self.spec.version,
            "complete": self.complete,
            "rows": sum(record.rows for record in self.shards),
            "spec": self.spec.to_json(),
            "shards": [record.to_json() for record in self.shards],
        }


def read_manifest(folder: Path) -> Manifest:
    """Read a store's manifest. Raises UserError for no store, a damaged one, or one of a newer version."""
    path = folder / MANIFEST
    damaged = UserError(f"{path} is damaged", "delete the folder and encode again")
    try:
        content = json.loads(storage.read_text(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{folder} is not an embedding store: it has no {MANIFEST}", "check the path") from None
    except ValueError:
        raise damaged from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not the manifest of an embedding store", "check the path")
    refuse_newer(content.get("version"), VERSION, path, "encode again")
    try:
        shards = [ShardRecord.from_json(record) for record in content["shards"]]
        return Manifest(StoreSpec.from_json(content["spec"], str(path)), shards, content["complete"] is True)
    except (KeyError, TypeError, AttributeError):
        raise damaged from None
