"""Operations on whole stores: describe and verify them, slice them to fewer dims, merge their parts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress, readable
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import Manifest, ShardRecord, load_shard, read_manifest, shards_there
from starbucks_retrieval.store.locate import is_part_folder, open_each_size, open_store, output_folder, store_folders
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.storage import PathLike, as_path, entries, is_remote
from starbucks_retrieval.store.writer import StoreWriter

_DESCRIBED = (
    *("kind", "rows", "shards", "shard_size", "store_dtype", "compute_dtype", "fingerprint", "pooling", "normalize"),
    *("prefix", "max_length", "data_digest", "parts", "part"),
)


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
    records = manifest.shards if manifest.complete else [load_shard(folder, shard) for shard in shards_there(folder)]
    found = [record for record in records if record is not None]
    return {name: getattr(spec, name) for name in _DESCRIBED} | {
        "path": str(folder),
        "size": str(spec.size),
        "complete": manifest.complete,
        "rows_there": sum(record.rows for record in found),
        "shards_there": len(found),
        "bytes": sum(length or 0 for length in storage.entries(folder).values()),
        "model": spec.model_name,
        "data": spec.data_name,
        **({"passage_size": str(spec.passage_size)} if spec.space else {}),
        **({"shared_space": spec.shared_space} if spec.shared_space else {}),
    }


def as_text(store: dict[str, Any]) -> str:
    """Format the description of one store for a terminal, without a line break at the end.

    Args:
        store: One of the mappings that `describe_stores` returns.
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
        *([f"  space    {store['shared_space']}, shared with other layers"] if "shared_space" in store else []),
        f"  data     {store['data'] or 'unnamed'}, digest {store['data_digest']}",
    ]
    return "\n".join(lines)


def verify_stores(paths: Sequence[PathLike]) -> dict[str, Any]:
    """Read every file of all stores at the given paths, local or remote, and compare its checksum.

    Args:
        paths: As for `store_folders`.

    Returns:
        Figures: stores, shards, bytes, and `problems`, which names each damaged or missing shard and each incomplete
        store.

    Raises:
        UserError: A path has no store, or a manifest cannot be read.
    """
    manifests = [(folder, read_manifest(folder)) for folder in store_folders(paths)]
    problems: list[str] = []
    shards = size = 0
    lengths = {folder: storage.entries(folder) for folder, _ in manifests}
    # Shards are counted by what is there: the number in a damaged manifest may be anything.
    there = {folder: range(len(m.shards)) if m.complete else shards_there(folder) for folder, m in manifests}
    work = [(folder, manifest, shard) for folder, manifest in manifests for shard in there[folder]]
    for folder, manifest, shard in progress(work, len(work), "shards", "verify"):
        record = load_shard(folder, shard)
        problem = _problem(folder, manifest, shard, record, lengths[folder])
        if problem is not None:
            problems.append(f"shard {shard}: {problem}")
        if record is not None:
            shards += 1
            size += record.vectors.bytes + record.ids.bytes
    for folder, manifest in manifests:
        if not manifest.complete:
            found = len(there[folder])
            problems.append(f"{folder} is incomplete: {found} of {manifest.spec.shards} shards are there")
    return {"stores": len(manifests), "shards": shards, "bytes": size, "problems": problems}


def _problem(
    folder: Path, manifest: Manifest, shard: int, record: ShardRecord | None, lengths: dict[str, int | None]
) -> str | None:
    if record is None:
        return f"its .json in {folder} is missing or damaged"
    if manifest.complete and record != manifest.shards[shard]:
        return f"its .json in {folder} differs from the manifest"
    start, stop = manifest.spec.shard_rows(shard)
    if (record.shard, record.start, record.rows) != (shard, start, stop - start):
        return f"its .json in {folder} is of another job"
    return record.problem(folder, lengths)


def slice_store(
    path: PathLike, output: PathLike, dims: Sequence[int], size: Size | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Cut a store to smaller dims of its layer, a shard at a time; a rerun resumes.

    Vectors stored in float16 are cut after rounding, so a slice may differ from an encoding at that size in the last
    digit.

    Args:
        path: The store.
        output: The folder of the new stores, each in <output>/L<layer>-D<dim>.
        dims: The dims to keep.
        size: The size to cut, where `path` holds several.
        overwrite: Replace other stores in the output folder.

    Returns:
        Figures: output, from, sizes, rows, shards_written.

    Raises:
        UserError: A dim is larger than the stored one, or the output holds another store.
    """
    source = open_store(path, size)
    refuse_quantised(source, "slice", "slice the store of floating-point numbers, and quantise the slices")
    source.verify_unchecked()
    stored = source.spec.size
    if wrong := [dim for dim in dims if not 1 <= dim <= stored.dim]:
        raise UserError(
            f"{path} stores {stored.dim} dimensions: {', '.join(map(str, wrong))} cannot be cut from them",
            f"use dims from 1 to {stored.dim}, or encode at a larger size",
        )
    specs = {dim: _sliced_spec(source.spec, dim) for dim in dims}
    folders = {dim: output_folder(output, spec.size, spec.parts, spec.part) for dim, spec in specs.items()}
    for folder in folders.values():
        _refuse_source(folder, source.folders)
    with contextlib.ExitStack() as stack:
        writers = {
            dim: stack.enter_context(StoreWriter.open(folders[dim], spec, overwrite)) for dim, spec in specs.items()
        }
        missing = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
        for shard in progress(missing, len(missing), "shards", "slice"):
            ids, vectors = source.consecutive(*source.spec.shard_rows(shard))
            for dim, writer in writers.items():
                if shard not in writer.done_shards():
                    writer.write_shard(shard, ids, truncate(vectors, dim, source.spec.normalize))
        for writer in writers.values():
            writer.finish()
    return {
        "output": str(output),
        "from": str(stored),
        "sizes": [str(spec.size) for spec in specs.values()],
        "rows": source.count,
        "shards_written": len(missing),
    }


def truncate(vectors: np.ndarray, dim: int, normalize: bool) -> np.ndarray:
    """Return the first `dim` dimensions of vectors [rows, width], rescaled to length 1 in float32 if `normalize`.

    Example:
        >>> truncate(np.array([[3.0, 4.0, 12.0]]), 2, normalize=True).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    part = vectors[:, :dim]
    if not normalize or dim == vectors.shape[1]:
        return part
    wide = part.astype(np.float32)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)  # torch's bound: zeros stay zeros


def merge_stores(
    paths: Sequence[PathLike],
    output: PathLike,
    shard_size: int | None = None,
    size: Size | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the parts of a job as one store for each size, a shard at a time; a rerun resumes.

    Args:
        paths: The parts: folders, outputs of encode, patterns.
        output: The folder of the new stores.
        shard_size: Rows of a shard; by default that of the parts.
        size: The only size to merge, where there are several.
        overwrite: Replace other stores in the output folder.

    Returns:
        Figures: output, sizes, rows, shards_written.

    Raises:
        UserError: Parts are missing or of different jobs, or the output holds another store or the parts.
    """
    if any(map(is_part_folder, entries(as_path(output)))):
        raise UserError(
            f"{output} holds parts; with a merged store beside them, readers could not tell which to read",
            "name another folder",
        )
    sources = open_each_size(paths, size)
    rows = shards = 0
    for each, source in sources.items():
        spec = dataclasses.replace(source.spec, shard_size=source.spec.shard_size if shard_size is None else shard_size)
        shards += copy_store(source, output_folder(output, each), spec, overwrite, "merge")
        rows += source.count
    return {"output": str(output), "sizes": list(map(str, sources)), "rows": rows, "shards_written": shards}


def refuse_quantised(source: EmbeddingStore, verb: str, hint: str) -> None:
    """Check that a store holds floating-point numbers.

    Args:
        verb: What cannot be done with codes, such as "slice".
        hint: What to do instead.

    Raises:
        UserError: The store holds codes (int8 or binary).
    """
    if source.spec.quantiser is not None:
        raise UserError(f"cannot {verb} {source.folders[0]}: it is stored in {source.spec.store_dtype} already", hint)


def copy_store(source: EmbeddingStore, folder: Path, spec: StoreSpec, overwrite: bool, verb: str) -> int:
    """Write the rows of a store as another job, and return the number of shards that were written.

    Args:
        source: The rows, in their order.
        folder: The folder of the new store.
        spec: Its job, of as many rows.
        overwrite: Replace another store in the folder.
        verb: Shown with the progress.

    Raises:
        UserError: The folder is that of the source or holds another store, or the source is damaged.
    """
    _refuse_source(folder, source.folders)
    source.verify_unchecked()
    with StoreWriter.open(folder, spec, overwrite) as writer:
        missing = writer.missing_shards()
        for shard in progress(missing, len(missing), "shards", f"{verb} {spec.size}"):
            writer.write_shard(shard, *source.consecutive(*spec.shard_rows(shard)))
        writer.finish()
    return len(missing)


def _sliced_spec(spec: StoreSpec, dim: int) -> StoreSpec:
    if dim == spec.size.dim:
        return spec
    return dataclasses.replace(
        spec,
        size=Size(spec.size.layer, dim),
        # Another value than that of an encoding at this size, or one job would resume the other.
        compute_dtype=f"{spec.compute_dtype}-cut{spec.size.dim}",
        provenance=describe({"cut_from": str(spec.size)}) | {"source": spec.provenance},
    )


def _refuse_source(target: Path, sources: Iterable[Path]) -> None:
    """Raise UserError if a folder to write is one of those that are read."""

    def name(path: Path) -> str:
        return str(path).rstrip("/") if is_remote(path) else str(path.resolve())

    if name(target) in map(name, sources):
        raise UserError(f"{target} would be read and written at the same time", "name another output folder")
