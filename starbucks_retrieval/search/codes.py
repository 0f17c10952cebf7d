"""The quantised first step of a funnel: codes of a store's vectors in memory, scanned by FAISS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel import FunnelStep
from starbucks_retrieval.search.funnel_search import Shortlister
from starbucks_retrieval.search.indexes.build import sample_rows
from starbucks_retrieval.search.indexes.vectors import make_index
from starbucks_retrieval.store import EmbeddingStore

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

    The codes are kept in memory, so they are made anew for every search of a process: a pass over the store.

    Args:
        step: The first step of a funnel, with a code.
        store: The passages at its size.
        seed: Draws the passages that the quantiser learns from.
        max_memory: Bytes for vectors and lists; the codes themselves come on top.
        threads: CPU threads of FAISS; None: all.

    Raises:
        UserError: FAISS is not installed, or the store is too small for a quantiser to learn from.

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
