"""The best candidates of each query, in trec_eval's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from starbucks_retrieval.search.scores import VectorSource

_LINES = 16  # at once: their keys stay in the processor's cache


def ranked_scores(scores: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    """Return the scores of each query that have some ranks.

    Args:
        scores: [queries, any].
        ranks: Counted from 1, descending.

    Returns:
        [ranks, queries].
    """
    found = np.empty((len(ranks), len(scores)), scores.dtype)
    for i, rank in enumerate(ranks):  # NumPy is slow if asked for several at once
        scores = np.partition(scores, -rank, axis=1)[:, -rank:]
        found[i] = scores[:, 0]
    return found


def largest(scores: np.ndarray, rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` largest scores of each query and their rows, in any order; the arrays are [queries, count or more]."""
    kept = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)


def best(rows: np.ndarray, scores: np.ndarray, depth: int, store: VectorSource) -> tuple[np.ndarray, np.ndarray]:
    """Return the `depth` best rows and scores of each query in trec_eval's order: score, then docid bytes, descending.

    Args:
        rows: Rows of the store [queries, candidates].
        scores: Their scores [queries, candidates] float32, no NaN.
        depth: Rows to keep per query.
        store: Gives the ids of rows with equal scores.

    Returns:
        Rows and scores, both [queries, min(depth, candidates)].
    """
    depth = min(depth, rows.shape[1])
    top_rows, top_scores = np.empty((len(rows), depth), rows.dtype), np.empty((len(rows), depth), np.float32)
    stretches = []
    for first in range(0, len(rows), _LINES):
        some_rows, some_scores = rows[first : first + _LINES], scores[first : first + _LINES]
        keys = _sorted_keys(some_scores)
        for i, places in enumerate(_columns(keys[:, :depth])):
            some_rows[i].take(places, out=top_rows[first + i], mode="clip")
            some_scores[i].take(places, out=top_scores[first + i], mode="clip")
        for i, start, stop in _ties(keys >> 32, depth):
            stretches.append((first + i, start, some_rows[i, _columns(keys[i, start:stop])]))
    _order(stretches, top_rows, store)
    return top_rows, top_scores


def by_docid(rows: np.ndarray, scores: np.ndarray, depth: int, store: VectorSource) -> tuple[np.ndarray, np.ndarray]:
    """Return what `best` does of rows that are in descending order of their scores already.

    Args:
        rows: Rows of the store [queries, candidates], with all whose scores equal the one at `depth`.
        scores: Their scores [queries, candidates].
        depth: Rows to keep per query, not above the candidates.
        store: Gives the ids of rows with equal scores.
    """
    stretches = [(i, start, rows[i, start:stop].copy()) for i, start, stop in _ties(scores, depth)]
    top_rows = rows[:, :depth]
    _order(stretches, top_rows, store)
    return top_rows, scores[:, :depth]


def _sorted_keys(scores: np.ndarray) -> np.ndarray:
    """Return integers whose upper halves are in descending order of the scores, with their columns as lower halves.

    Sorting them takes a third of the time of `argsort`.
    """
    bits = (np.float32(0) - scores).view(np.int32)  # not -scores: zeros shall be equal
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64) << 32  # integers in the order of the numbers
    keys |= np.arange(scores.shape[1])
    keys.sort(axis=1)
    return keys


def _columns(keys: np.ndarray) -> np.ndarray:
    return keys & 0xFFFFFFFF


def _ties(scores: np.ndarray, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield the line and the columns, from start to before stop, of each stretch of equal scores that starts above `depth`."""
    equal = scores[:, 1:] == scores[:, :-1]
    tied = np.flatnonzero(equal[:, :depth].any(axis=1))
    lines, edges = np.nonzero(np.diff(equal[tied], prepend=False, append=False, axis=1))
    for i, start, stop in zip(tied[lines[::2]].tolist(), edges[::2].tolist(), edges[1::2].tolist()):
        if start < depth:
            yield i, start, stop + 1


def _order(stretches: Sequence[tuple[int, int, np.ndarray]], top_rows: np.ndarray, store: VectorSource) -> None:
    """Sort rows of equal scores by docid, from some line and column of `top_rows` on; all ids are read at once."""
    if not stretches:
        return
    docids = iter(store.id_bytes(np.concatenate([rows for _, _, rows in stretches])))
    for line, start, rows in stretches:
        keyed = sorted(((next(docids), row) for row in rows.tolist()), reverse=True)
        room = top_rows[line, start : start + len(rows)]  # ends at the depth
        room[:] = [row for _, row in keyed[: len(room)]]
