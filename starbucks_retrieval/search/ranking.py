"""The best candidates of each query, in trec_eval's order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starbucks_retrieval.search.scores import VectorSource
from starbucks_retrieval.search.threads import share_lines


def ranked_scores(scores: np.ndarray, ranks: Sequence[int], threads: int = 1) -> np.ndarray:
    """Return the scores of each query that have some ranks, from 1.

    Args:
        scores: [queries, any].
        ranks: Descending.
        threads: CPU threads at most.

    Returns:
        [ranks, queries].
    """
    found = np.empty((len(ranks), len(scores)), scores.dtype)

    def find(lines: slice) -> None:
        best = scores[lines]
        for i, rank in enumerate(ranks):  # NumPy is slow if asked for several at once
            best = np.partition(best, -rank, axis=1)[:, -rank:]
            found[i, lines] = best[:, 0]

    share_lines(len(scores), scores.size, threads, find)
    return found


def largest(scores: np.ndarray, rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` largest scores of each query and their rows, in any order; the arrays are [queries, count or more]."""
    kept = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)


def best(
    rows: np.ndarray, scores: np.ndarray, depth: int, store: VectorSource, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `depth` best rows and scores of each query in trec_eval's order: score, then docid bytes, descending.

    Args:
        rows: Rows of the store [queries, candidates].
        scores: Their scores [queries, candidates].
        depth: Rows to keep per query.
        store: Gives the ids of rows with equal scores.
        threads: CPU threads that share the queries, if there is enough to sort.

    Returns:
        Rows and scores, both [queries, min(depth, candidates)].
    """
    ranked, values, tied = np.empty_like(rows), np.empty_like(scores), np.empty(len(rows), bool)

    def rank(lines: slice) -> None:
        order = np.argsort(-scores[lines], axis=1)
        ranked[lines] = np.take_along_axis(rows[lines], order, 1)
        values[lines] = np.take_along_axis(scores[lines], order, 1)
        tied[lines] = _equal(values[lines])[:, :depth].any(axis=1)

    share_lines(len(rows), rows.size, threads, rank)
    numbers = np.flatnonzero(tied)
    for first in range(0, len(numbers), 64):
        _order_ties(ranked, values, numbers[first : first + 64], depth, store)
    return ranked[:, :depth], values[:, :depth]


def _equal(values: np.ndarray) -> np.ndarray:
    return values[:, 1:] == values[:, :-1]


def _order_ties(rows: np.ndarray, values: np.ndarray, lines: np.ndarray, depth: int, store: VectorSource) -> None:
    """Sort, in place, each stretch of equal scores that starts above `depth` by docid; all ids are read at once."""
    stretches = []
    for line, equal in zip(lines, _equal(values[lines])):
        edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
        stretches += [rows[line, start : stop + 1] for start, stop in edges.reshape(-1, 2) if start < depth]
    docids = iter(store.id_bytes(np.concatenate(stretches)))
    for stretch in stretches:
        keyed = sorted(((next(docids), row) for row in stretch.tolist()), reverse=True)
        stretch[:] = [row for _, row in keyed]
