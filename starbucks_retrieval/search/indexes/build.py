"""Building an index over a store: train on a sample, add passages as they stream, write it whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path, file_digest, sync_file, sync_folder, temporaries, write_json
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.indexes.bits import BINARY, BitIndex
from starbucks_retrieval.search.indexes.manifest import (
    INDEX,
    MANIFEST,
    IndexManifest,
    identity,
    is_ours,
    read_manifest,
)
from starbucks_retrieval.search.indexes.recall import sample_rows
from starbucks_retrieval.search.indexes.vectors import VectorIndex
from starbucks_retrieval.search.plan import parse_bytes
from starbucks_retrieval.store import EmbeddingStore

# A graph depends on which passages come together: the same number whatever the memory, unless there is too little.
_BLOCK = 16384
_FEW = 39  # passages for each cluster, below which FAISS warns, too


@dataclass(frozen=True)
class IndexSummary:
    """What building an index did. `built`: False where the same index was there already; `seconds`: reading included.

    `bytes_per_passage` is of the index alone.
    """

    folder: str
    manifest: IndexManifest
    built: bool
    train_seconds: float
    seconds: float

    def __str__(self) -> str:
        manifest = self.manifest
        what = f"{manifest.factory} over {manifest.count} passages at {manifest.store['size']}"
        size = f"{manifest.bytes_per_passage:.1f} bytes each"
        if not self.built:
            return f"{what}: the index is in {self.folder} already, {size}"
        return (
            f"{what}: {size}, trained on {manifest.trained_on} in {self.train_seconds:.1f} s, "
            f"built in {self.seconds:.1f} s, written to {self.folder}"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        manifest = self.manifest
        return {
            "index": manifest.factory,
            "size": manifest.store["size"],
            "passages": manifest.count,
            "trained_on": manifest.trained_on,
            "bytes": manifest.bytes,
            "bytes_per_passage": manifest.bytes_per_passage,
            "built": self.built,
            "train_seconds": self.train_seconds,
            "seconds": self.seconds,
            "path": self.folder,
        }


def build_index(
    store: EmbeddingStore,
    factory: str,
    folder: str | Path,
    *,
    parameters: Mapping[str, float] | None = None,
    train_sample: int | None = None,
    seed: int = 42,
    threads: int | None = None,
    max_memory: str | int = "2GB",
    overwrite: bool = False,
) -> IndexSummary:
    """Build an index over all passages of a store and keep it in a folder.

    `factory`: a FAISS factory string, searched by inner product, or "Binary". `parameters`: efConstruction of HNSW,
    niter of IVF. `train_sample`: passages to train on, drawn with `seed`; by default 64 for each list of an IVF and at
    least 65536, as far as half of `max_memory` and the store allow. `max_memory` bounds what is read at once; the index
    itself is held in memory, too. The same arguments give the same bytes on one machine with one number of `threads`;
    HNSW only with one thread, for FAISS links its nodes in the order in which threads reach them.

    An index that is there already, whole, is kept when it is the same; another is replaced with `overwrite`, at the
    last moment. Raises UserError for a factory or parameter that does not fit, a store too small to train on, and a
    folder that holds something else.
    """
    began = now()
    folder = Path(folder)
    memory = parse_bytes(max_memory)
    faiss = import_faiss()
    if threads is not None:
        faiss.omp_set_num_threads(threads)
    dim = store.spec.size.dim
    index = make_index(factory, dim, seed, parameters or {})
    trained_on = _sample_size(index, store, train_sample, memory)
    wanted = IndexManifest(
        factory=factory,
        parameters=index.built_with,
        seed=seed,
        train_sample=train_sample,
        trained_on=trained_on if index.learns else 0,
        store=identity(store),
        model_name=store.spec.model_name,
        faiss=faiss.__version__,
        bytes=0,
        blake2b="",
    )
    there = _already_there(folder, wanted, overwrite)
    if there is not None:
        return IndexSummary(str(folder), there, False, 0.0, seconds_since(began))
    folder.mkdir(parents=True, exist_ok=True)
    label = f"index {factory}"
    if index.learns:
        log.info("%s: training on %d of %d passages", label, trained_on, store.count)
    train_began = now()
    index.train(_sample(store, trained_on, seed))
    train_seconds = seconds_since(train_began)
    rows = min(_BLOCK, max(256, memory // 2 // (dim * 4)))
    for _, block in progress(store.blocks(rows, np.float32), -(-store.count // rows), "blocks", label):
        index.add(np.ascontiguousarray(block))
    manifest = _write(folder, index, wanted)
    return IndexSummary(str(folder), manifest, True, train_seconds, seconds_since(began))


def make_index(factory: str, dim: int, seed: int, values: Mapping[str, float]) -> VectorIndex | BitIndex:
    """An empty index of the kind that a factory string names."""
    return BitIndex.make(dim, values) if factory == BINARY else VectorIndex.make(factory, dim, seed, values)


def _sample_size(index: VectorIndex | BitIndex, store: EmbeddingStore, asked: int | None, memory: int) -> int:
    if index.least > store.count:
        raise UserError(
            f"--index {index.factory} needs at least {index.least} passages to learn from; the store has {store.count}",
            "take fewer lists or bits, or an index that needs no more than it has: Flat, SQ8, HNSW32",
        )
    if asked is not None and asked < index.least:
        raise UserError(
            f"--train_sample {asked} is too small for --index {index.factory}",
            f"give at least {index.least}, better {_FEW * index.least} or more, or leave it out",
        )
    fitting = memory // 2 // (store.spec.size.dim * 4)
    size = min(asked if asked is not None else max(index.least, min(index.wanted, fitting)), store.count)
    if size < _FEW * index.clusters:
        log.warning(
            "%s learns %d clusters from %d passages, fewer than %d for each: take fewer lists or bits%s",
            index.factory,
            index.clusters,
            size,
            _FEW,
            ", or raise --max_memory or --train_sample" if size < store.count else "",
        )
    return size


def _sample(store: EmbeddingStore, size: int, seed: int) -> np.ndarray:
    """Random vectors of the store [size, dim] float32, in its order."""
    rows = sample_rows(store.count, size, seed)
    sample = np.empty((size, store.spec.size.dim), np.float32)
    for start in range(0, size, _BLOCK):
        sample[start : start + _BLOCK] = store.vectors(rows[start : start + _BLOCK])
    return sample


def _already_there(folder: Path, wanted: IndexManifest, overwrite: bool) -> IndexManifest | None:
    """The same index, whole, in the folder; None when it is to be built. Raises UserError where it must not be."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, a folder is needed", "choose another folder")
    names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    left = (*temporaries(folder / INDEX), *temporaries(folder / MANIFEST))
    known = {INDEX, MANIFEST, *(path.name for path in left)}
    foreign = next((name for name in names if name not in known), None)
    if foreign is None and MANIFEST in names and _is_foreign(folder):
        foreign = MANIFEST
    if foreign is not None:
        raise UserError(
            f"{folder} holds something else: {foreign}", "choose another folder; --overwrite replaces indexes only"
        )
    if MANIFEST not in names or overwrite:
        return None
    there = read_manifest(folder)
    if not there.same_request(wanted):
        raise UserError(
            f"{folder} holds another index: {there.factory} over {there.count} passages at {there.store.get('size')}",
            "choose another folder, or give --overwrite",
        )
    problem = there.problem(folder)
    if problem is not None:
        log.warning("the index is built again: %s", problem)
    return there if problem is None else None


def _is_foreign(folder: Path) -> bool:
    """Whether the manifest there is of something else; a damaged one beside an index is taken for the index's."""
    try:
        return not is_ours(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return not (folder / INDEX).exists()


def _write(folder: Path, index: VectorIndex | BitIndex, wanted: IndexManifest) -> IndexManifest:
    for left in (*temporaries(folder / INDEX), *temporaries(folder / MANIFEST)):  # by a build that was killed
        left.unlink(missing_ok=True)
    with atomic_path(folder / INDEX) as temporary:
        index.save(temporary)
        sync_file(temporary)
        values = vars(wanted) | {
            "bytes": temporary.stat().st_size,
            "blake2b": file_digest(temporary),
            "calibration": index.calibration,
        }
        # From here until the new manifest there is no index: never the manifest of one beside the file of another.
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
    manifest = IndexManifest(**values)
    write_json(folder / MANIFEST, manifest.to_json())
    return manifest
