"""Convert stores to Parquet, Arrow or plain numpy files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import BeforeRename, atomic_writer, temporaries
from starbucks_retrieval.locks import OutputLock, left_by_killed_run, lock_of
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.locate import open_store
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.storage import PathLike, as_path, is_remote

_IDS, _VECTORS = "ids.txt", "vectors.npy"  # of an export to npy
_BLOCK = 16 << 20  # bytes of vectors in memory at a time, and of a row group of Parquet


def export_store(
    path: PathLike, output: PathLike, to: str, size: Size | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Write a store for other programs, atomically and in constant memory.

    Args:
        path: The store.
        output: A local file, or for `npy` a folder.
        to: `parquet` or `arrow` (the Arrow file format): one file with the columns `id` (string) and `embedding`
            (fixed_size_list of float16 or float32, as stored), and the spec of the store as JSON in the schema's
            metadata. `npy`: `ids.txt` and, written last, `vectors.npy` [rows, dim].
        size: The size to export, where `path` holds several.
        overwrite: Replace an existing output.

    Returns:
        Figures: output, to, size, rows, dtype.

    Raises:
        UserError: The output exists and no killed export left it, is a URL, or another process writes it.
    """
    source = open_store(path, size)
    target = as_path(output)
    if is_remote(target):
        raise UserError(f"{output} is a URL, but exports are written locally", "export to a local folder, and copy it")
    _check_target(target, to, overwrite)
    with OutputLock(target) as lock:
        _check_target(target, to, overwrite)  # another process may have written it since
        _WRITERS[to](source, target, lock.announce)
    return {
        "output": str(output),
        "to": to,
        "size": str(source.spec.size),
        "rows": source.count,
        "dtype": source.spec.store_dtype,
    }


def _check_target(target: Path, to: str, overwrite: bool) -> None:
    """Refuse an output that exists, unless it may be overwritten or is what a killed export left."""
    if overwrite:
        return
    found = [target] if target.exists() else []
    if to == "npy" and target.is_dir():
        unfinished = {left for name in (_IDS, _VECTORS) for left in temporaries(target / name)}
        found = [path for path in target.iterdir() if path not in unfinished]
    if not all(left_by_killed_run(path, lock_of(target)) for path in found):
        raise UserError(f"{target} exists already", "name another output, or give --overwrite")


def _blocks(store: EmbeddingStore) -> Iterator[tuple[list[str], np.ndarray]]:
    rows = max(1, _BLOCK // (store.spec.size.dim * store.dtype.itemsize))
    starts = range(0, store.count, rows)
    for start in progress(starts, len(starts), "blocks", "export"):
        yield store.consecutive(start, min(start + rows, store.count))


def _columns(
    store: EmbeddingStore, target: Path, announce: BeforeRename, opener: Callable[[BinaryIO, Any], Any]
) -> None:
    import pyarrow as pa

    kind = pa.list_(pa.from_numpy_dtype(store.dtype), store.spec.size.dim)
    metadata = {"starbucks_retrieval.store": json.dumps(store.spec.to_json(), ensure_ascii=False, sort_keys=True)}
    schema = pa.schema([("id", pa.string()), ("embedding", kind)], metadata)
    with atomic_writer(target, before_rename=announce) as handle, opener(handle, schema) as writer:
        for ids, vectors in _blocks(store):
            flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
            arrays = [pa.array(ids, pa.string()), pa.FixedSizeListArray.from_arrays(flat, store.spec.size.dim)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _parquet(store: EmbeddingStore, target: Path, announce: BeforeRename) -> None:
    import pyarrow.parquet as pq

    # A dictionary of unique ids would be as long as the ids.
    _columns(store, target, announce, lambda handle, schema: pq.ParquetWriter(handle, schema, use_dictionary=False))


def _arrow(store: EmbeddingStore, target: Path, announce: BeforeRename) -> None:
    import pyarrow as pa

    _columns(store, target, announce, pa.ipc.new_file)


def _npy(store: EmbeddingStore, target: Path, announce: BeforeRename) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, --to npy writes a folder", "name another output")
    (target / _VECTORS).unlink(missing_ok=True)  # never new ids beside old vectors
    with atomic_writer(target / _IDS, before_rename=announce) as handle:
        for ids, _ in _blocks(store):
            if broken := [docid for docid in ids if "\n" in docid or "\r" in docid]:
                raise UserError(f"the id {broken[0]!r} contains a line break", "export to parquet or arrow")
            handle.write("".join(f"{docid}\n" for docid in ids).encode())
    shape = (store.count, store.spec.size.dim)
    header = {"descr": np.lib.format.dtype_to_descr(store.dtype), "fortran_order": False, "shape": shape}
    try:
        with atomic_writer(target / _VECTORS, before_rename=announce) as handle:
            np.lib.format.write_array_header_1_0(handle, header)
            for _, vectors in _blocks(store):
                handle.write(np.ascontiguousarray(vectors).data)
    except BaseException:
        (target / _IDS).unlink()  # the same command would refuse an output that exists
        raise


_WRITERS: dict[str, Callable[[EmbeddingStore, Path, BeforeRename], None]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "npy": _npy,
}
