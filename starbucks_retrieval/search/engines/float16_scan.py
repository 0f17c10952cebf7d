"""Scanning float16 vectors where they are stored, for searches of few queries.

Multiplying matrices needs the passages in float32; for few queries the conversion takes longer than the products. FAISS
converts in registers the vectors that its scalar quantiser stores as float16, in the same format as a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import progress
from starbucks_retrieval.search.engines import FEW, SearchResults
from starbucks_retrieval.search.ranking import largest
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.threads import share

NUMBERS_AT_ONCE = 2**22  # of vectors that stay in the cache until all queries have read them
_NUMBERS_PER_THREAD = 4_000_000  # of the scanned vectors; for fewer, starting a thread takes longer than it saves


def scan_is_faster(queries: int, dtype: npt.DTypeLike) -> bool:
    """Return whether so many queries at once search vectors of a type faster by `scan_float16` than by products."""
    return queries < FEW and np.dtype(dtype) == np.float16


def hold(store: EmbeddingStore, max_bytes: int, queries: int) -> None:
    """Keep vectors in memory if they fit, in the type that is faster for repeated searches of so many queries at once."""
    store.hold(max_bytes, np.float16 if scan_is_faster(queries, store.block_dtype) else np.float32)


def scan_float16(
    faiss: Any,
    queries: np.ndarray,
    rows_of: Callable[[int, int], np.ndarray],
    ranges: Sequence[tuple[int, int]],
    count: int,
    label: str = "",
) -> SearchResults:
    """Return the rows of highest inner product in single precision, by as many threads as FAISS has.

    Args:
        faiss: The module.
        queries: [queries, dim] float32.
        rows_of: Returns the vectors of the rows [start, stop), float16 [stop - start, dim].
        ranges: The rows to scan, as pairs of start and stop; not so many at once that they do not fit in the cache.
        count: Rows to find for each query, at most those of all ranges.
        label: Shown with the progress; empty for none.

    Returns:
        Scores, float32, and rows, int64, in any order; both [queries, count].

    Raises:
        UserError: The store is damaged.
    """
    dim = queries.shape[1]
    quantiser = faiss.ScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16)

    def scan(taken: Iterator[tuple[int, tuple[int, int]]]) -> SearchResults:
        scores = np.full((len(queries), count), -np.inf, np.float32)
        labels = np.full((len(queries), count), -1, np.int64)
        scanners = [quantiser.select_InvertedListScanner(faiss.METRIC_INNER_PRODUCT, None, True, None) for _ in queries]
        for scanner, query in zip(scanners, queries):
            scanner.set_query(faiss.swig_ptr(query))
        for number, bounds in taken:
            rows = rows_of(*bounds)
            codes = faiss.swig_ptr(rows.view(np.uint8))
            for scanner, best, found in zip(scanners, scores, labels):
                scanner.set_list(number, 0)
                scanner.scan_codes(len(rows), codes, None, faiss.swig_ptr(best), faiss.swig_ptr(found), count)
        # A label has the number of the range in its upper half and the row of the range in the lower one.
        starts = np.array([start for start, _ in ranges])
        return scores, np.where(labels < 0, -1, starts[labels >> 32] + (labels & 0xFFFFFFFF))

    numbers = dim * len(queries) * sum(stop - start for start, stop in ranges)
    threads = min(faiss.omp_get_max_threads(), len(ranges), 1 + numbers // _NUMBERS_PER_THREAD)
    found = share(enumerate(progress(ranges, len(ranges), "blocks", label) if label else ranges), threads, scan)
    if threads == 1:
        return found[0]
    scores, rows = (np.concatenate(part, axis=1) for part in zip(*found))
    return largest(scores, rows, count)
