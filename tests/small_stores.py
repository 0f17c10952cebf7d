"""Stores of made-up vectors, as `encode` would write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter


def write_store(folder: Path, ids: list[str], vectors: np.ndarray, **changes: object) -> Path:
    """Write ids and vectors as a finished store. `changes`: fields of its StoreSpec."""
    values: dict = {
        "kind": "passages",
        "size": Size(6, vectors.shape[1]),
        "pooling": "cls",
        "normalize": False,
        "prefix": "",
        "separator": " ",
        "max_length": 196,
        "fingerprint": "f00d",
        "compute_dtype": "fp32",
        "store_dtype": "float32",
        "data_digest": "da7a",
        "data_count": len(ids),
        "shard_size": 64,
    }
    spec = StoreSpec(**(values | changes))
    with StoreWriter.open(folder, spec) as writer:
        for shard in writer.missing_shards():
            start, stop = (spec.first_row + row for row in spec.shard_rows(shard))
            writer.write_shard(shard, ids[start:stop], vectors[start:stop])
        writer.finish()
    return folder


def make_0_1(folder: Path, **changes: object) -> None:
    """Rewrite the .json files of a store as version 0.1 wrote them: without checksums of blocks and without digests.

    Args:
        folder: The folder of one size.
        changes: Other values of entries of the manifest.
    """
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        content = {name: value for name, value in content.items() if name not in ("digest", "xxh3_64KiB")}
        path.write_text(json.dumps(content | (changes if path.name == "manifest.json" else {})))
