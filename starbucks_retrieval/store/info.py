"""Describe stores, and verify their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import MANIFEST, Manifest, ShardRecord, load_shard, read_manifest
from starbucks_retrieval.store.locate import store_folders
from starbucks_retrieval.store.storage import PathLike


def describe_stores(paths: Sequence[PathLike]) -> list[dict[str, Any]]:
    """Describe each store at the given paths, complete or not; reads only small files.

    Args:
        paths: As for `store_folders`.

    Returns:
        One JSON-ready mapping for each store. `rows` and `shards` are those of the complete store,
        `rows_there` and `shards_there` those already written; `bytes` is the size of all files in the folder.

    Raises:
        UserError: A path has no store, or a manifest cannot be read.
    """
    return [_describe(folder) for folder in store_folders(paths)]


def _describe(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    spec = manifest.spec
    records = manifest.shards if manifest.complete else [load_shard(folder, shard) for shard in range(spec.shards)]
    found = [record for record in records if record is not None]
    return {
        "path": str(folder),
        "kind": spec.kind,
        "size": str(spec.size),
        "complete": manifest.complete,
        "rows": spec.rows,
        "rows_there": sum(record.rows for record in found),
        "shards": spec.shards,
        "shards_there": len(found),
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
    """Format the description of one store for a terminal.

    Args:
        store: One of the mappings that `describe_stores` returns.

    Returns:
        Several lines, without a line break at the end.
    """
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
    """Format a number of bytes.

    Example:
        >>> readable(1_234_567_890)
        '1.2 GB'
    """
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def verify_stores(paths: Sequence[PathLike]) -> dict[str, Any]:
    """Read every file of all stores at the given paths, local or remote, and compare its checksum.

    Returns:
        Figures: stores, shards, bytes, and `problems`, which names each damaged or missing shard and each incomplete
        store.

    Raises:
        UserError: A path has no store, or a manifest cannot be read.
    """
    manifests = [(folder, read_manifest(folder)) for folder in store_folders(paths)]
    problems: list[str] = []
    shards = size = 0
    work = [(folder, manifest, shard) for folder, manifest in manifests for shard in range(manifest.spec.shards)]
    lengths = {folder: storage.entries(folder) for folder, _ in manifests}
    for folder, manifest, shard in progress(work, len(work), "shards", "verify"):
        record = load_shard(folder, shard)
        if record is None and not manifest.complete:
            continue  # reported once for the store, below
        problem = _problem(folder, manifest, shard, record, lengths[folder])
        if problem is not None:
            problems.append(f"shard {shard}: {problem}")
        if record is not None:
            shards += 1
            size += record.vectors.bytes + record.ids.bytes
    for folder, manifest in manifests:
        if not manifest.complete:
            found = sum(load_shard(folder, shard) is not None for shard in range(manifest.spec.shards))
            problems.append(f"{folder} is incomplete: {found} of {manifest.spec.shards} shards are there")
    return {"stores": len(manifests), "shards": shards, "bytes": size, "problems": problems}


def _problem(
    folder: Path, manifest: Manifest, shard: int, record: ShardRecord | None, lengths: dict[str, int | None]
) -> str | None:
    if manifest.complete:
        if shard >= len(manifest.shards):
            return f"{folder / MANIFEST} does not list it"
        if record is None:
            return f"its .json in {folder} is missing or damaged"
        if record != manifest.shards[shard]:
            return f"its .json in {folder} differs from the manifest"
    assert record is not None
    start, stop = manifest.spec.shard_rows(shard)
    if (record.shard, record.start, record.rows) != (shard, start, stop - start):
        return f"its .json in {folder} is of another job"
    return record.problem(folder, lengths)
