"""Are stores what they were when they were written?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.locate import store_folders
from starbucks_retrieval.store.manifest import Manifest, read_manifest
from starbucks_retrieval.store.shards import ShardRecord, load_shard
from starbucks_retrieval.store.storage import PathLike


def verify_stores(paths: Sequence[PathLike]) -> dict[str, Any]:
    """Read every file of all stores that `paths` name, where they lie, and compare it with its checksum.

    Returns figures; `problems` names each damaged or missing shard, and each store that is not finished. Raises
    UserError for a path without a store, and for a manifest that cannot be read.
    """
    manifests = [(folder, read_manifest(folder)) for folder in store_folders(paths)]
    problems: list[str] = []
    shards = size = 0
    work = [(folder, manifest, shard) for folder, manifest in manifests for shard in range(manifest.spec.shards)]
    lengths = {folder: storage.entries(folder) for folder, _ in manifests}
    for folder, manifest, shard in progress(work, len(work), "shards", "verify"):
        record = load_shard(folder, shard)
        if record is None and not manifest.complete:
            continue  # told once for the store, below
        problem = _problem(folder, manifest, shard, record, lengths[folder])
        if problem is not None:
            problems.append(f"shard {shard}: {problem}")
        if record is not None:
            shards += 1
            size += record.vectors.bytes + record.ids.bytes
    for folder, manifest in manifests:
        if not manifest.complete:
            there = sum(load_shard(folder, shard) is not None for shard in range(manifest.spec.shards))
            problems.append(f"{folder} is incomplete: {there} of {manifest.spec.shards} shards are there")
    return {"stores": len(manifests), "shards": shards, "bytes": size, "problems": problems}


def _problem(
    folder: Path, manifest: Manifest, shard: int, record: ShardRecord | None, lengths: dict[str, int | None]
) -> str | None:
    if manifest.complete:
        told = manifest.shards[shard] if shard < len(manifest.shards) else None
        if told is None:
            return f"{folder / MANIFEST} does not tell of it"
        if record != told:
            return (
                f"its .json in {folder} is {'missing or damaged' if record is None else 'not what the manifest says'}"
            )
    assert record is not None
    start, stop = manifest.spec.shard_rows(shard)
    if (record.shard, record.start, record.rows) != (shard, start, stop - start):
        return f"its .json in {folder} is of another job"
    return record.problem(folder, lengths)
