"""Exact scores, and error bounds of approximate ones. A score depends on its two vectors only, not on batch or library."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from starbucks_retrieval.store.dtypes import check_finite

_CACHE = 2**19  # bytes of vectors, in double precision, that stay in the cache while they are scored


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
    # A product of the linear algebra library would wait for those of other threads.
    fast = np.einsum("ij,j->i", vectors, query)
    scores = (fast + 2 * error).astype(np.float32)
    doubtful = scores != (fast - 2 * error).astype(np.float32)
    if doubtful.any():
        scores[doubtful] = _fixed_order(vectors[doubtful].astype(np.float64), query)
    return scores + np.float32(0)  # no negative zero, which a run would show


def score_rows(vectors: np.ndarray, rows: np.ndarray, query: np.ndarray, error: float) -> np.ndarray:
    """Return `inner_products` of the given rows of `vectors` as float32: [len(rows)].

    Rows are gathered a few at a time so that they stay in the CPU cache, which halves the time.

    Args:
        vectors: [any, dim] float16 or float32.
        rows: At least one row number of `vectors`, in any order.
        query: [dim] float64 holding float32 numbers.
        error: `double_error` of the query.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.

    Example:
        >>> score_rows(np.eye(3, dtype=np.float32), np.array([2, 0]), np.array([0.5, 0.0, 0.25]), 1e-15).tolist()
        [0.25, 0.5]
    """
    dim = vectors.shape[1]
    at_once = min(max(16, _CACHE // (8 * dim)), len(rows))
    part = np.empty((at_once, dim), vectors.dtype)
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), at_once):
        chunk = rows[start : start + at_once]
        np.take(vectors, chunk, axis=0, out=part[: len(chunk)], mode="clip")  # any other mode buffers `out`
        scores[start : start + len(chunk)] = inner_products(part[: len(chunk)], query, error)
    if not np.isfinite(scores).all():
        check_finite(vectors)
    return scores


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
    width = min(rows.shape[1], gathered)
    height = len(rows) if store.count <= gathered else max(1, gathered // width)
    for top in range(0, len(rows), height):
        for left in range(0, rows.shape[1], width):
            part = rows[top : top + height, left : left + width]
            needed, positions = _unique(part, store.count)
            vectors = store.vectors(needed)
            for i, line in enumerate(positions, top):
                scores[i, left : left + width] = score_rows(vectors, line, exact[i], errors[i])
    return scores


def best(rows: np.ndarray, scores: np.ndarray, depth: int, store: VectorSource) -> tuple[np.ndarray, np.ndarray]:
    """Return the `depth` best rows and scores of each query in trec_eval's order: score, then docid bytes, descending.

    Args:
        rows: Rows of the store [queries, candidates].
        scores: Their scores [queries, candidates].
        depth: Rows to keep per query.
        store: Gives the ids of rows with equal scores.

    Returns:
        Rows and scores, both [queries, min(depth, candidates)].
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    equal = scores[:, 1:] == scores[:, :-1]
    tied = np.flatnonzero(equal[:, :depth].any(axis=1))
    for first in range(0, len(tied), 64):
        _order_ties(rows, equal, tied[first : first + 64], depth, store)
    return rows[:, :depth], scores[:, :depth]


def _order_ties(rows: np.ndarray, equal: np.ndarray, lines: np.ndarray, depth: int, store: VectorSource) -> None:
    """Sort, in place, each stretch of equal scores that starts above `depth` by docid; all ids are read at once."""
    stretches = []
    for line in lines:
        edges = np.flatnonzero(np.diff(equal[line], prepend=False, append=False))
        stretches += [rows[line, start : stop + 1] for start, stop in edges.reshape(-1, 2) if start < depth]
    docids = iter(store.id_bytes(np.concatenate(stretches)))
    for stretch in stretches:
        keyed = sorted(((next(docids), row) for row in stretch.tolist()), reverse=True)
        stretch[:] = [row for _, row in keyed]


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


def _fixed_order(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    # Products of two float32 are exact in float64; they are summed by one tree, whatever the number of rows.
    terms = vectors * query
    while (width := terms.shape[1]) > 1:
        half = width // 2
        terms[:, :half] += terms[:, width - half :]
        terms = terms[:, : width - half]
    return terms[:, 0]
