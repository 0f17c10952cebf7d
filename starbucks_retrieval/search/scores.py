"""Scores that depend on the two vectors only: not on the machine, the block, the batch or the library."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from starbucks_retrieval.store.float16 import to_float32

_CACHE = 2**19  # bytes of vectors in double precision that stay in the cache while they are scored


class Vectors(Protocol):
    """What scoring needs of a store."""

    count: int
    largest_norm: float

    def vectors(self, rows: np.ndarray) -> np.ndarray: ...

    def id_bytes(self, rows: np.ndarray) -> list[bytes]: ...


def single_error(queries: np.ndarray, largest_norm: float) -> np.ndarray:
    """How far a single-precision inner product can be from the exact one, for each query: [queries], float64.

    Source: the standard bound of summation in any order, Higham, Accuracy and Stability of Numerical Algorithms, 3.1.
    """
    return _bound(queries, largest_norm, np.float32)


def double_error(queries: np.ndarray, largest_norm: float) -> np.ndarray:
    """The same for double precision."""
    return _bound(queries, largest_norm, np.float64)


def inner_products(vectors: np.ndarray, query: np.ndarray, error: float) -> np.ndarray:
    """Inner products as float32, the same bits whoever computes them: [rows].

    `vectors` [rows, dim] and `query` [dim] are float64 holding float32 numbers; `error` is the query's `double_error`.
    A library's sum is taken where every sum within the error rounds to one float32, and the rest, about one in a
    million, is summed in an order of our own.
    """
    fast = vectors @ query
    scores = (fast + 2 * error).astype(np.float32)
    doubtful = scores != (fast - 2 * error).astype(np.float32)
    if doubtful.any():
        scores[doubtful] = _fixed_order(vectors[doubtful], query)
    return scores + np.float32(0)  # no negative zero, which a run would show


def score_rows(vectors: np.ndarray, rows: np.ndarray, query: np.ndarray, error: float) -> np.ndarray:
    """`inner_products` of some rows of float32 `vectors` [any, dim]: [len(rows)]. A few at a time: half the time."""
    dim = vectors.shape[1]
    at_once = min(max(16, _CACHE // (8 * dim)), len(rows))
    single, double = np.empty((at_once, dim), np.float32), np.empty((at_once, dim), np.float64)
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        np.take(vectors, some, axis=0, out=single[: len(some)], mode="clip")  # any other mode buffers `out`
        double[: len(some)] = single[: len(some)]
        scores[start : start + len(some)] = inner_products(double[: len(some)], query, error)
    return scores


def score_candidates(queries: np.ndarray, rows: np.ndarray, store: Vectors, gathered: int) -> np.ndarray:
    """Exact scores of each query's own candidates: queries [queries, dim], rows and result [queries, candidates].

    Reads at most about `gathered` vectors from the store at once.
    """
    scores = np.empty(rows.shape, np.float32)
    errors = double_error(queries, store.largest_norm)
    exact = queries.astype(np.float64)
    width = min(rows.shape[1], gathered)
    height = len(rows) if store.count <= gathered else max(1, gathered // width)
    for top in range(0, len(rows), height):
        for left in range(0, rows.shape[1], width):
            part = rows[top : top + height, left : left + width]
            needed, places = _unique(part, store.count)
            vectors = to_float32(store.vectors(needed))
            for i, own in enumerate(places, top):
                scores[i, left : left + width] = score_rows(vectors, own, exact[i], errors[i])
    return scores


def best(rows: np.ndarray, scores: np.ndarray, depth: int, store: Vectors) -> tuple[np.ndarray, np.ndarray]:
    """The `depth` best of each line, in trec_eval's order: score descending, then docid descending by its bytes.

    `rows`, `scores`: [queries, candidates]; both results: [queries, min(depth, candidates)].
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
    equal = scores[:, 1:] == scores[:, :-1]
    tied = np.flatnonzero(equal[:, :depth].any(axis=1))
    for first in range(0, len(tied), 64):
        _order_ties(rows, equal, tied[first : first + 64], depth, store)
    return rows[:, :depth], scores[:, :depth]


def _order_ties(rows: np.ndarray, equal: np.ndarray, lines: np.ndarray, depth: int, store: Vectors) -> None:
    """Sort, in place, each stretch of equal scores that starts above `depth` by docid; ids are read for all at once."""
    stretches = []
    for line in lines:
        edges = np.flatnonzero(np.diff(equal[line], prepend=False, append=False))
        stretches += [rows[line, start : stop + 1] for start, stop in edges.reshape(-1, 2) if start < depth]
    docids = iter(store.id_bytes(np.concatenate(stretches)))
    for stretch in stretches:
        keyed = sorted(((next(docids), row) for row in stretch.tolist()), reverse=True)
        stretch[:] = [row for _, row in keyed]


def _unique(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows, ascending, and where in them each row is."""
    if count > 8 * rows.size:
        distinct, places = np.unique(rows, return_inverse=True)
        return distinct, places.reshape(rows.shape)
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
    # Products of two float32 are exact in float64; the sums are those of one tree, whatever the number of rows.
    terms = vectors * query
    while (width := terms.shape[1]) > 1:
        half = width // 2
        terms[:, :half] += terms[:, width - half :]
        terms = terms[:, : width - half]
    return terms[:, 0]
