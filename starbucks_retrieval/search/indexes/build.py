"""Building an index over a store: train on a sample, add all passages, write it atomically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path, file_digest, sync_file, sync_folder, write_json
from starbucks_retrieval.leftovers import temporaries
from starbucks_retrieval.locks import LOCK, FolderLock
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.indexes.manifest import (
    INDEX,
    MANIFEST,
    IndexManifest,
    identity,
    is_index_manifest,
    read_manifest,
)
from starbucks_retrieval.search.indexes.vectors import VectorIndex, make_index
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.checksums import BLOCK, block_checksums

# The links of a graph depend on the block size, so it does not depend on memory, unless there is too little.
_BLOCK = 16384
_FEW = 39  # passages for each cluster, below which FAISS warns too


@dataclass(frozen=True)
class IndexSummary:
    """What building an index did.

    Attributes:
        folder: The folder of the index.
        manifest: How it was built, and over which store.
        built: False where the same index existed already.
        train_seconds: Time of training alone.
        seconds: Time of all, with reading.
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
            return f"{what}: the index is already in {self.folder}, {size}"
        return (
            f"{what}: {size}, trained on {manifest.trained_on} in {self.train_seconds:.1f} s, "
            f"built in {self.seconds:.1f} s, written to {self.folder}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
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
    max_memory: int = MAX_MEMORY,
    overwrite: bool = False,
) -> IndexSummary:
    """Build an index over all passages of a store and keep it in a folder.

    The same arguments give the same bytes on one machine with one number of threads; HNSW only with one thread, because
    FAISS links nodes in the order in which threads reach them. A complete index of the same arguments is kept; another
    one is replaced with `overwrite`, at the last moment.

    Args:
        store: The passages.
        factory: A FAISS factory string, searched by inner product, or "Binary".
        folder: A new folder, or that of an index.
        parameters: Of building: efConstruction of HNSW, niter of IVF.
        train_sample: Passages to train on; by default 64 for each list of an IVF and at least 65536, as far as half of
            `max_memory` and the store allow.
        seed: Draws the sample, and seeds clustering.
        threads: CPU threads of FAISS; None: all.
        max_memory: Bytes to read at once; the index is held in memory too.
        overwrite: Replace another index in the folder.

    Raises:
        UserError: FAISS refuses the factory or a parameter, the store is too small to train on, the folder holds
            something else, or another process writes it.
    """
    began = now()
    folder = Path(folder)
    faiss = import_faiss()
    if threads is not None:
        faiss.omp_set_num_threads(threads)
    index = make_index(factory, store.spec.size.dim, seed, parameters or {})
    trained_on = _sample_size(index, store, train_sample, max_memory)
    wanted = IndexManifest(
        factory=factory,
        parameters=index.built_with,
        seed=seed,
        train_sample=train_sample,
        trained_on=trained_on if index.trainable else 0,
        store=identity(store),
        model_name=store.spec.model_name,
        faiss=faiss.__version__,
        bytes=0,
        blake2b="",
    )
    existing = _existing(folder, wanted, overwrite)
    if existing is not None:
        if (folder / LOCK).exists():  # of a build that was killed when it was done
            FolderLock(folder).release()
        return IndexSummary(str(folder), existing, False, 0.0, seconds_since(began))
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        existing = _existing(folder, wanted, overwrite)  # another process may have built it since
        if existing is not None:
            return IndexSummary(str(folder), existing, False, 0.0, seconds_since(began))
        manifest, train_seconds = _build(store, index, trained_on, folder, wanted, max_memory, seed)
    finally:
        lock.release()
    return IndexSummary(str(folder), manifest, True, train_seconds, seconds_since(began))


def _build(
    store: EmbeddingStore,
    index: VectorIndex,
    trained_on: int,
    folder: Path,
    wanted: IndexManifest,
    max_memory: int,
    seed: int,
) -> tuple[IndexManifest, float]:
    """Train the index, add all passages and write it; return its manifest and the seconds of training.

    The folder is locked.
    """
    factory, dim = wanted.factory, store.spec.size.dim
    label = f"index {factory}"
    if index.trainable:
        log.info("%s: training on %d of %d passages", label, trained_on, store.count)
    train_began = now()
    index.train(_sample(store, trained_on, seed))
    train_seconds = seconds_since(train_began)
    rows = min(_BLOCK, max(256, max_memory // 2 // (dim * 4)))
    for _, block in progress(store.blocks(rows, np.float32), -(-store.count // rows), "blocks", label):
        index.add(np.ascontiguousarray(block))
    return _write(folder, index, wanted), train_seconds


def _sample_size(index: VectorIndex, store: EmbeddingStore, requested: int | None, memory: int) -> int:
    if index.smallest_sample > store.count:
        raise UserError(
            f"--index {index.factory} needs at least {index.smallest_sample} passages to learn from; the store has {store.count}",
            "use fewer lists or bits, or an index that needs no more than it has: Flat, SQ8, HNSW32",
        )
    if requested is not None and requested < index.smallest_sample:
        raise UserError(
            f"--train_sample {requested} is too small for --index {index.factory}",
            f"give at least {index.smallest_sample}, better {_FEW * index.smallest_sample} or more, or omit it",
        )
    fitting = memory // 2 // (store.spec.size.dim * 4)
    size = min(
        requested if requested is not None else max(index.smallest_sample, min(index.good_sample, fitting)), store.count
    )
    if size < _FEW * index.clusters:
        log.warning(
            "%s learns %d clusters from %d passages, fewer than %d for each: use fewer lists or bits%s",
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


def _existing(folder: Path, wanted: IndexManifest, overwrite: bool) -> IndexManifest | None:
    """Return the manifest of the same complete index, or None to build it. Raises UserError for a folder of anything else."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, a folder is needed", "choose another folder")
    names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    left = (*temporaries(folder / INDEX), *temporaries(folder / MANIFEST))
    known = {INDEX, MANIFEST, LOCK, *(path.name for path in left)}
    foreign = next((name for name in names if name not in known), None)
    if foreign is None and MANIFEST in names and _is_foreign(folder):
        foreign = MANIFEST
    if foreign is not None:
        raise UserError(
            f"{folder} holds something else: {foreign}", "choose another folder; --overwrite replaces indexes only"
        )
    if MANIFEST not in names or overwrite:
        return None
    existing = read_manifest(folder)
    if not existing.same_request(wanted):
        raise UserError(
            f"{folder} holds another index: {existing.factory} over {existing.count} passages at {existing.store.get('size')}",
            "choose another folder, or give --overwrite",
        )
    problem = existing.problem(folder)
    if problem is not None:
        log.warning("the index is built again: %s", problem)
    return existing if problem is None else None


def _is_foreign(folder: Path) -> bool:
    """Return whether the manifest is of something else; a damaged one beside an index counts as that of the index."""
    try:
        return not is_index_manifest(read_json(folder / MANIFEST, Any))
    except (OSError, UserError):
        return not (folder / INDEX).exists()


def _write(folder: Path, index: VectorIndex, wanted: IndexManifest) -> IndexManifest:
    # Of a build that was killed; the lock keeps others out.
    for left in (*temporaries(folder / INDEX), *temporaries(folder / MANIFEST)):
        left.unlink(missing_ok=True)
    with atomic_path(folder / INDEX) as temporary:
        index.save(temporary)
        sync_file(temporary)
        with open(temporary, "rb") as handle:
            blocks = block_checksums(iter(partial(handle.read, BLOCK), b""))
        values = vars(wanted) | {
            "bytes": temporary.stat().st_size,
            "blake2b": file_digest(temporary),
            "calibration": index.calibration,
            "blocks": blocks,
        }
        # Until the new manifest is written there is no index: a manifest never stands beside the file of another.
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
    manifest = IndexManifest(**values)
    write_json(folder / MANIFEST, manifest.to_json())
    return manifest


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """Draw `size` of `count` rows without replacement, ascending; all where there are no more.

    Args:
        count: Rows to draw from: 0 to count - 1.
        size: Rows to draw.
        seed: The same seed draws the same rows.

    Raises:
        UserError: The size is below 1.

    Example:
        >>> sample_rows(3, 10, seed=42)
        array([0, 1, 2])
        >>> len(sample_rows(1_000_000, 10, seed=42))
        10
    """
    if size < 1:
        raise UserError(f"a sample of {size} is empty", "give 1 or more")
    if size >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False, shuffle=False))
