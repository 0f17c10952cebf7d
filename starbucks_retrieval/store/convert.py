"""Convert stores to Parquet, Arrow or plain numpy files, and to stores of quantised vectors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import BeforeRename, atomic_writer
from starbucks_retrieval.leftovers import temporaries
from starbucks_retrieval.locks import OutputLock, left_by_killed_run, lock_of
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.dtypes import calibration_rows, row_bytes
from starbucks_retrieval.store.locate import open_each_size, open_store, output_folder
from starbucks_retrieval.store.operations import copy_store, refuse_quantised
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
            (fixed_size_list of float16 or float32, as stored; float32 of a quantised store), and the spec of the store as
            JSON in the schema's metadata. `npy`: `ids.txt` and, written last, `vectors.npy` [rows, dim].
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
        (_write_npy if to == "npy" else partial(_write_columns, to))(source, target, lock.announce)
    return {
        "output": str(output),
        "to": to,
        "size": str(source.spec.size),
        "rows": source.count,
        "dtype": source.dtype.name,
    }


def quantise_stores(
    paths: Sequence[PathLike],
    store_dtype: str,
    output: PathLike | None = None,
    size: Size | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write stores with a byte or a bit for each number, a shard at a time; a rerun resumes. Parts are merged.

    Scales are learnt from 1,024 rows that are spread evenly over the corpus, and recorded in the manifest. So the code of
    a row depends neither on shards nor on parts.

    Args:
        paths: The stores: folders, outputs of encode, patterns.
        store_dtype: `int8` or `binary`.
        output: The folder of the new stores; by default a folder `int8` or `binary` beside the sizes, where funnels find
            them.
        size: The only size to quantise, where there are several.
        overwrite: Replace other stores in the output folder.

    Returns:
        Figures: output, to, sizes, rows, bytes_before and bytes of the vectors, shards_written.

    Raises:
        UserError: A store is quantised already, parts are missing, or the output holds another store.
    """
    sources = open_each_size(paths, size)
    shards = before = after = 0
    for each, source in sources.items():
        refuse_quantised(source, "quantise", "quantise the store of floating-point numbers")
        if output is None and len(source.folders) > 1:
            raise UserError(f"{each} is stored in {len(source.folders)} parts", "name a folder with --output")
        target = source.folders[0].parent / store_dtype if output is None else output
        spec = source.spec.quantised(store_dtype, source.vectors(calibration_rows(source.count)))
        spec = dataclasses.replace(spec, provenance=describe({"quantised": store_dtype}) | {"source": spec.provenance})
        shards += copy_store(source, output_folder(target, each), spec, overwrite, "quantise")
        before += source.count * row_bytes(source.spec.store_dtype, each.dim)
        after += source.count * row_bytes(store_dtype, each.dim)
    figures = {"sizes": list(map(str, sources)), "rows": sum(source.count for source in sources.values())}
    return (
        {"output": str(target), "to": store_dtype, "bytes_before": before, "bytes": after}
        | figures
        | {"shards_written": shards}
    )


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


def _write_columns(to: str, store: EmbeddingStore, target: Path, announce: BeforeRename) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A dictionary of unique ids would be as long as the ids.
    opener = {"arrow": pa.ipc.new_file, "parquet": partial(pq.ParquetWriter, use_dictionary=False)}[to]
    kind = pa.list_(pa.from_numpy_dtype(store.dtype), store.spec.size.dim)
    metadata = {"starbucks_retrieval.store": json.dumps(store.spec.to_json(), ensure_ascii=False, sort_keys=True)}
    schema = pa.schema([("id", pa.string()), ("embedding", kind)], metadata)
    with atomic_writer(target, before_rename=announce) as handle, opener(handle, schema) as writer:
        for ids, vectors in _blocks(store):
            flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
            arrays = [pa.array(ids, pa.string()), pa.FixedSizeListArray.from_arrays(flat, store.spec.size.dim)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _write_npy(store: EmbeddingStore, target: Path, announce: BeforeRename) -> None:
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
