"""Exact scores, and error bounds of approximate ones. A score depends on its two vectors only, not on batch or library."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.search.loops import compiled_loops
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.dtypes import check_finite
from starbucks_retrieval.store.parts import has_parts, parts_with

_CACHE = 2**19  # bytes of vectors, in double precision, that stay in the cache while they are scored
_NUMBERS_PER_THREAD = 4_000_000  # of the scored vectors; for fewer, starting a thread takes longer than it saves
_READ_AT_ONCE = 2**22  # numbers of the vectors that are read together; larger arrays get new pages for every call


class VectorSource(Protocol):
    """The part of a store that scoring needs.

    `vectors` and `id_bytes` take row numbers, integers [n] in any order, and return vectors [n, dim] and n ids as
    UTF-8.

    Attributes:
        count: Rows.
        largest_norm: A length that no vector exceeds.
    """

    count: int
    largest_norm: float

    def vectors(self, rows: np.ndarray) -> np.ndarray: ...

    def id_bytes(self, rows: np.ndarray) -> list[bytes]: ...


def single_error(queries: np.ndarray, largest_norm: float) -> np.ndarray:
    """Return a bound on the error of a single-precision inner product, for each query.

    Source: the standard bound of summation in any order, Higham, Accuracy and Stability of Numerical Algorithms, 3.1.

    Args:
        queries: [queries, dim] float32.
        largest_norm: A length that no vector of the store exceeds, such as `store.largest_norm`.

    Returns:
        [queries] float64. It grows with the dim and with both lengths.

    Example:
        >>> single_error(np.ones((2, 4), np.float32), largest_norm=1.0) < 1e-6
        array([ True,  True])
    """
    return _bound(queries, largest_norm, np.float32)


def double_error(queries: np.ndarray, largest_norm: float) -> np.ndarray:
    """Return the bound of `single_error` for double precision.

    Args:
        queries: [queries, dim].
        largest_norm: A length that no vector of the store exceeds.

    Returns:
        [queries] float64; `inner_products` and `score_rows` take one of them as `error`.
    """
    return _bound(queries, largest_norm, np.float64)


def inner_products(vectors: np.ndarray, query: np.ndarray, error: float) -> np.ndarray:
    """Return inner products as float32 that are the same bits on every machine: [rows].

    A sum in any order is used where every value within its error bound rounds to the same float32. The other scores,
    about one in a million, are summed in a fixed order.

    Args:
        vectors: [rows, dim] float16, or float32, or float64 holding float32 numbers.
        query: [dim] float64 holding float32 numbers.
        error: `double_error` of the query.
    """
    sums = _sums(vectors, query)[None]
    return _rounded(sums, query[None], np.array([error]), lambda i, n: vectors[n])[0]


def score_rows(vectors: np.ndarray, rows: np.ndarray, queries: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return `inner_products` of the given rows of `vectors` for each query, as float32: [queries, n].

    Args:
        vectors: [any, dim] float16 or float32, contiguous.
        rows: Row numbers of `vectors` for each query, [queries, n] int64, in any order; n is at least 1.
        queries: [queries, dim] float64 holding float32 numbers.
        errors: `double_error` of the queries.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.

    Example:
        >>> score_rows(np.eye(3, dtype=np.float32), np.array([[2, 0]]), np.array([[0.5, 0.0, 0.25]]), np.array([1e-15]))
        array([[0.25, 0.5 ]], dtype=float32)
    """
    loops = compiled_loops(rows.size * vectors.shape[1])
    sums = np.empty(rows.shape)
    if loops is not None:
        loops.sum_products(vectors, rows.ravel(), queries, np.arange(rows.size), sums)
    else:
        # Vectors are gathered a few at a time so that they stay in the CPU cache, which halves the time.
        at_once = min(max(16, _CACHE // (8 * vectors.shape[1])), rows.shape[1])
        part = np.empty((at_once, vectors.shape[1]), vectors.dtype)
        for line, query, out in zip(rows, queries, sums):
            for start in range(0, len(line), at_once):
                chunk = line[start : start + at_once]
                np.take(vectors, chunk, axis=0, out=part[: len(chunk)], mode="clip")  # any other mode buffers `out`
                out[start : start + at_once] = _sums(part[: len(chunk)], query)
    return _rounded(sums, queries, errors, lambda i, n: vectors[rows[i, n]])


def _sums(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    # A product of the linear algebra library would wait for those of other threads.
    return np.einsum("ij,j->i", vectors, query)


def _rounded(
    sums: np.ndarray,
    queries: np.ndarray,
    errors: np.ndarray,
    vectors_at: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Round sums of products [queries, n] to float32, as `inner_products` says; `vectors_at` reads vectors by their place."""
    slack = 2 * errors[:, None]
    scores = (sums + slack).astype(np.float32)
    i, n = np.nonzero(scores != (sums - slack).astype(np.float32))  # NaN too
    if len(i):
        vectors = vectors_at(i, n)
        check_finite(vectors)
        scores[i, n] = _fixed_order(vectors.astype(np.float64), queries[i])
    infinite = ~np.isfinite(scores)
    if infinite.any():
        check_finite(vectors_at(*np.nonzero(infinite)))
    return scores + np.float32(0)  # no negative zero, which a run would show


def score_candidates(queries: np.ndarray, rows: np.ndarray, store: VectorSource, gathered: int) -> np.ndarray:
    """Return the exact scores of each query's candidates: [queries, candidates].

    Args:
        queries: [queries, dim].
        rows: Rows of the store [queries, candidates].
        store: Where the vectors are read.
        gathered: Vectors to read at once, about.
    """
    scores = np.empty(rows.shape, np.float32)
    errors = double_error(queries, store.largest_norm)
    exact = queries.astype(np.float64)
    loops = compiled_loops(0) if has_parts(store) else None  # `score_rows` counts what is read before
    if loops is not None:
        height = max(1, gathered // rows.shape[1])
        for lines in (slice(top, top + height) for top in range(0, len(rows), height)):
            scores[lines] = _score_where_stored(exact[lines], errors[lines], rows[lines], store, loops)
        return scores
    if getattr(store, "mapped", False):  # else opening a shard takes time, and as many rows are read as memory allows
        gathered = min(gathered, max(rows.shape[1], _READ_AT_ONCE // queries.shape[1]))
    width = min(rows.shape[1], gathered)
    height = len(rows) if store.count <= gathered else max(1, gathered // width)
    for top in range(0, len(rows), height):
        for left in range(0, rows.shape[1], width):
            part = rows[top : top + height, left : left + width]
            needed, positions = _unique(part, store.count)
            vectors = store.vectors(needed)
            lines = slice(top, top + height)
            scores[lines, left : left + width] = score_rows(vectors, positions, exact[lines], errors[lines])
    return scores


def _score_where_stored(
    queries: np.ndarray, errors: np.ndarray, rows: np.ndarray, store: Any, loops: ModuleType
) -> np.ndarray:
    """Return the exact scores [queries, candidates], read row after row of the store."""
    sums = np.empty(rows.shape)
    places = np.argsort(rows, axis=None)
    ascending = rows.ravel()[places]
    for found, first, vectors in parts_with(store, ascending):
        loops.sum_products(vectors, ascending[found] - first, queries, places[found], sums)
    return _rounded(sums, queries, errors, lambda i, n: store.vectors(rows[i, n]))


def score_in_threads(
    queries: np.ndarray, rows: np.ndarray, store: EmbeddingStore, gathered: int, threads: int | None = None
) -> np.ndarray:
    """Return what `score_candidates` does; if there are many candidates, threads share the queries.

    Args:
        queries: [queries, dim].
        rows: Rows of the store [queries, candidates].
        store: Where the vectors are read.
        gathered: Vectors to read at once, about, by all threads together.
        threads: CPU threads at most; None: all.
    """
    dim = queries.shape[1]
    threads = max(1, min(threads or os.cpu_count() or 1, len(rows), rows.size * dim // _NUMBERS_PER_THREAD))
    gathered = max(1, gathered // threads)
    scores = np.empty(rows.shape, np.float32)

    def score_share(share: slice) -> None:
        scores[share] = score_candidates(queries[share], rows[share], store, gathered)

    if threads == 1:
        score_share(slice(None))
        return scores
    length = -(-len(rows) // threads)
    with ThreadPoolExecutor(threads) as pool:  # NumPy releases the interpreter lock where the time is spent
        list(pool.map(score_share, (slice(start, start + length) for start in range(0, len(rows), length))))
    return scores


def _unique(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, ascending, and the position of each row among them."""
    if count > 8 * rows.size:
        distinct, positions = np.unique(rows, return_inverse=True)
        return distinct, positions.reshape(rows.shape)
    seen = np.zeros(count, bool)  # a table beats sorting when the corpus is not much larger than the lists
    seen[rows] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[rows]


def _bound(queries: np.ndarray, largest_norm: float, dtype: type[np.floating]) -> np.ndarray:
    terms = queries.shape[1] + 2
    unit = float(np.finfo(dtype).eps) / 2
    norms = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1)) * (largest_norm * (1 + 1e-9))
    underflow = terms * float(np.finfo(dtype).tiny)
    return norms * (terms * unit / (1 - terms * unit)) + np.where(norms > 0, underflow, 0.0)


def _fixed_order(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    # Products of two float32 are exact in float64; they are summed by one tree, whatever the number of rows.
    terms = vectors * queries
    while (width := terms.shape[1]) > 1:
        half = width // 2
        terms[:, :half] += terms[:, width - half :]
        terms = terms[:, : width - half]
    return terms[:, 0]
