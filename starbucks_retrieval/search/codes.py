"""The quantised first step of a funnel: codes of a store's vectors in memory, scanned by FAISS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel import FunnelStep
from starbucks_retrieval.search.funnel_search import Shortlister
from starbucks_retrieval.search.indexes.build import sample_rows
from starbucks_retrieval.search.indexes.vectors import make_index
from starbucks_retrieval.store import EmbeddingStore, output_folder
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.quantise import QUANTISED
from starbucks_retrieval.store.spec import SCALES, job_difference
from starbucks_retrieval.store.storage import entries

_SAMPLE = 16384  # passages to learn from: FAISS uses 4096 for 16 centroids
_BLOCK = 16384  # passages that are encoded together


def code_shortlister(
    step: FunnelStep,
    store: EmbeddingStore,
    *,
    seed: int = 42,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
) -> Shortlister:
    """Encode all vectors of a store and return a function that scans the codes.

    The codes are kept in memory, so they are made anew for every search of a process: a pass over the store. Those of
    int8 and binary are read instead where `starbucks store quantise` has stored them beside the store.

    Args:
        step: The first step of a funnel, with a code.
        store: The passages at its size.
        seed: Draws the passages that the quantiser learns from.
        max_memory: Bytes for vectors and lists; the codes themselves come on top.
        threads: CPU threads of FAISS; None: all.

    Raises:
        UserError: FAISS is not installed, the store is too small for a quantiser to learn from, or codes beside it are
            of another store.

    Example:
        >>> import tempfile, numpy as np
        >>> from starbucks_retrieval.search.funnel import Funnel
        >>> from starbucks_retrieval.search.stores import write_vectors
        >>> vectors = np.eye(4, dtype=np.float32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_vectors(f"{folder}/L1-D4", "abcd", vectors)
        ...     find = code_shortlister(Funnel.parse("1:4/int8@1,1:4").steps[0], store)
        ...     rows, scores = find(vectors[2:3], 1)
        ...     [row.tolist() for row in rows]
        [[2]]
    """
    factory = step.factory or "Flat"
    if threads is not None:
        import_faiss().omp_set_num_threads(threads)
    dim = store.spec.size.dim
    if (stored := _stored_codes(step, store)) is not None:
        return _scan(stored)
    index = make_index(factory, dim, seed, {})
    if store.count < index.smallest_sample:
        raise UserError(
            f"{step} learns from at least {index.smallest_sample} passages; the store has {store.count}",
            "omit the code: so few passages are scanned in no time",
        )
    rows = sample_rows(store.count, min(_SAMPLE, max(index.smallest_sample, max_memory // 2 // (dim * 4))), seed)
    index.train(store.vectors(rows).astype(np.float32))
    for _, block in store.blocks(max(256, min(_BLOCK, max_memory // 2 // (dim * 4))), np.float32):
        index.add(np.ascontiguousarray(block))

    def find(queries: np.ndarray, depth: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        rows, scores = index.search(np.ascontiguousarray(queries, np.float32), depth, index.search_parameters)
        return list(rows), list(scores)

    return find


def _stored_codes(step: FunnelStep, store: EmbeddingStore) -> EmbeddingStore | None:
    """Return the quantised store of the vectors of a store, or None if there is none beside it."""
    if store.spec.store_dtype == step.code:
        return store
    if step.code not in QUANTISED or len(store.folders) != 1:
        return None
    folder = output_folder(store.folders[0].parent / step.code, step.size)
    if MANIFEST not in entries(folder):
        return None
    stored = EmbeddingStore.open(folder)
    made = ("store_dtype", *SCALES, "shard_size", "parts", "part")
    if difference := job_difference(store.spec, stored.spec, ignore=made):
        raise UserError(
            f"{folder} does not hold codes of {store.folders[0]}: {difference}",
            f"run starbucks store quantise {store.folders[0]} --to {step.code} --overwrite",
        )
    return stored


def _scan(stored: EmbeddingStore) -> Shortlister:
    """Return a function that scans stored codes, held in memory."""
    faiss, quantiser, dim = import_faiss(), stored.spec.quantiser, stored.spec.size.dim
    assert quantiser is not None
    index: Any
    prepare: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray
    if quantiser.store_dtype == "binary":
        index, prepare = faiss.IndexBinaryFlat(-(-dim // 8) * 8), quantiser.encode
        for codes in stored.codes():
            index.add(np.ascontiguousarray(codes))
    else:
        # Not QT_8bit_direct_signed, whose scores are wrong from 64 dimensions on (FAISS 1.15.1 with AVX-512).
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        scale, offset = quantiser.scale, quantiser.offset
        # FAISS reads a byte b as the first number + (b + 0.5) / 255 of the second.
        levels = np.concatenate([offset - np.float32(128.5) * scale, 255 * scale]).astype(np.float32)
        faiss.copy_array_to_vector(levels, index.sq.trained)
        index.is_trained = True
        for codes in stored.codes():
            index.add_sa_codes(codes.view(np.uint8) ^ np.uint8(128))

    def find(queries: np.ndarray, depth: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        scores, rows = index.search(prepare(queries), depth)
        return list(rows), list(scores)

    return find
