"""Smaller dims from a stored one: the first d numbers of each vector, brought back to length 1 if they had it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.layout import output_folder
from starbucks_retrieval.store.locate import open_store
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.storage import PathLike, refuse_source
from starbucks_retrieval.store.writer import StoreWriter


def slice_store(
    path: PathLike,
    output: PathLike,
    dims: Sequence[int],
    size: Size | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Cut a store to smaller dims of its layer, a shard at a time; each becomes a store in <output>/L<layer>-D<dim>.

    What was stored in float16 is cut from what it was rounded to, so a slice may differ from an encoding at that size
    in the last digit. Resumes by itself. `size` chooses where `path` holds several. Returns figures. Raises UserError
    for a dim above the stored one, and for an output that holds another store.
    """
    source = open_store(path, size)
    stored = source.spec.size
    if wrong := [dim for dim in dims if not 1 <= dim <= stored.dim]:
        raise UserError(
            f"{path} stores {stored.dim} dimensions: {', '.join(map(str, wrong))} cannot be cut from them",
            f"take dims from 1 to {stored.dim}, or encode at a wider size",
        )
    specs = {dim: _spec(source.spec, dim) for dim in dims}
    folders = {dim: output_folder(output, spec.size, spec.parts, spec.part) for dim, spec in specs.items()}
    for folder in folders.values():
        refuse_source(folder, source.folders)
    with contextlib.ExitStack() as stack:
        writers = {
            dim: stack.enter_context(StoreWriter.open(folders[dim], spec, overwrite)) for dim, spec in specs.items()
        }
        missing = sorted({shard for writer in writers.values() for shard in writer.missing_shards()})
        for shard in progress(missing, len(missing), "shards", "slice"):
            ids, vectors = source.consecutive(*source.spec.shard_rows(shard))
            for dim, writer in writers.items():
                if shard not in writer.done_shards():
                    writer.write_shard(shard, ids, cut(vectors, dim, source.spec.normalize))
        for writer in writers.values():
            writer.finish()
    return {
        "output": str(output),
        "from": str(stored),
        "sizes": [str(spec.size) for spec in specs.values()],
        "rows": source.count,
        "shards_written": len(missing),
    }


def cut(vectors: np.ndarray, dim: int, normalize: bool) -> np.ndarray:
    """The first `dim` numbers of [rows, width] vectors; divided by their length, in float32, if `normalize`."""
    part = vectors[:, :dim]
    if not normalize or dim == vectors.shape[1]:
        return part
    wide = part.astype(np.float32)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)  # torch's bound: zeros stay zeros


def _spec(spec: StoreSpec, dim: int) -> StoreSpec:
    if dim == spec.size.dim:
        return spec
    return dataclasses.replace(
        spec,
        size=Size(spec.size.layer, dim),
        # Told apart from what encode writes at that size, or one would resume the other half done.
        compute_dtype=f"{spec.compute_dtype}-cut{spec.size.dim}",
        provenance=describe({"cut_from": str(spec.size)}) | {"source": spec.provenance},
    )
