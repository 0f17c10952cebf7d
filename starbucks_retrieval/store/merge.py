"""Parts of one job as one store, in shards of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.layout import is_part, output_folder
from starbucks_retrieval.store.locate import open_each_size
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.storage import PathLike, as_path, entries, refuse_source
from starbucks_retrieval.store.writer import StoreWriter


def merge_stores(
    paths: Sequence[PathLike],
    output: PathLike,
    shard_size: int | None = None,
    size: Size | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the parts that `paths` name as one store a size, a shard at a time; resumes by itself.

    `shard_size` (rows) defaults to that of the parts; `size` merges one size of several. Returns figures. Raises
    UserError for parts that are missing or of different jobs, and for an output that holds another store or the parts.
    """
    if any(map(is_part, entries(as_path(output)))):
        raise UserError(
            f"{output} holds parts; a whole store beside them would be taken for both", "name another folder"
        )
    sources = open_each_size(paths, size)
    rows = shards = 0
    for one, source in sources.items():
        shards += _copy(source, output_folder(output, one), shard_size, overwrite)
        rows += source.count
    return {"output": str(output), "sizes": list(map(str, sources)), "rows": rows, "shards_written": shards}


def _copy(source: EmbeddingStore, folder: Path, shard_size: int | None, overwrite: bool) -> int:
    refuse_source(folder, source.folders)
    spec = dataclasses.replace(source.spec, shard_size=source.spec.shard_size if shard_size is None else shard_size)
    with StoreWriter.open(folder, spec, overwrite) as writer:
        missing = writer.missing_shards()
        for shard in progress(missing, len(missing), "shards", f"merge {spec.size}"):
            writer.write_shard(shard, *source.consecutive(*spec.shard_rows(shard)))
        writer.finish()
    return len(missing)
