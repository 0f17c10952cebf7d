"""What stores hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.store import storage
from starbucks_retrieval.store.locate import store_folders
from starbucks_retrieval.store.manifest import read_manifest
from starbucks_retrieval.store.shards import load_shard
from starbucks_retrieval.store.storage import PathLike


def describe_stores(paths: Sequence[PathLike]) -> list[dict[str, Any]]:
    """One JSON-ready mapping for each store that `paths` name, finished or not; nothing but small files is read."""
    return [_describe(folder) for folder in store_folders(paths)]


def _describe(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    spec = manifest.spec
    records = manifest.shards if manifest.complete else [load_shard(folder, shard) for shard in range(spec.shards)]
    there = [record for record in records if record is not None]
    return {
        "path": str(folder),
        "kind": spec.kind,
        "size": str(spec.size),
        "complete": manifest.complete,
        "rows": spec.rows,
        "rows_there": sum(record.rows for record in there),
        "shards": spec.shards,
        "shards_there": len(there),
        "shard_size": spec.shard_size,
        "store_dtype": spec.store_dtype,
        "compute_dtype": spec.compute_dtype,
        "bytes": sum(length or 0 for length in storage.entries(folder).values()),
        "model": spec.model_name,
        "fingerprint": spec.fingerprint,
        "pooling": spec.pooling,
        "normalize": spec.normalize,
        "prefix": spec.prefix,
        "max_length": spec.max_length,
        "data": spec.data_name,
        "data_digest": spec.data_digest,
        "parts": spec.parts,
        "part": spec.part,
        **({"passage_size": str(spec.passage_size)} if spec.space else {}),
    }


def as_text(store: dict[str, Any]) -> str:
    """What `describe_stores` tells of one store, for a terminal."""
    state = "complete" if store["complete"] else f"INCOMPLETE: {store['shards_there']} of {store['shards']} shards"
    part = f", part {store['part']} of {store['parts']} (from 0)" if store["parts"] > 1 else ""
    against = f" for passages at {store['passage_size']}" if "passage_size" in store else ""
    lines = [
        f"{store['path']}: {state}",
        f"  holds    {store['rows']} {store['kind']} at {store['size']}{against}, {store['store_dtype']}{part}",
        f"  on disk  {readable(store['bytes'])} in {store['shards_there']} shards",
        f"  model    {store['model'] or 'unnamed'}, fingerprint {store['fingerprint']}, {store['compute_dtype']}",
        f"  vectors  {store['pooling']} pooling, {'length 1' if store['normalize'] else 'not normalised'}, "
        f"prefix {store['prefix']!r}, at most {store['max_length'] or 'an unknown number of'} tokens",
        f"  data     {store['data'] or 'unnamed'}, digest {store['data_digest']}",
    ]
    return "\n".join(lines)


def readable(count: int) -> str:
    """`1.2 GB` for a number of bytes."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
