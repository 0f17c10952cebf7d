"""One later step of a funnel: the best of a shortlist at another size, with exact scores, reading nothing else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from starbucks_retrieval.search.plan import make_plan
from starbucks_retrieval.search.scores import best, double_error, score_candidates, score_rows, single_error
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.float16 import to_float32

_AT_ONCE = 2**23  # numbers of the vectors that are read at once


def rescore(
    queries: np.ndarray, rows: np.ndarray, keep: int, store: EmbeddingStore, memory: int, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` best of each query's own rows: (rows, scores), both [queries, min(keep, candidates)].

    `queries`: [queries, dim]; `rows`: [queries, candidates], distinct in each line. Gives what scoring all of them
    exactly and ordering them by `best` gives, bit for bit; those that cannot be among the best by their score in
    single precision are spared that.
    """
    candidates = rows.shape[1]
    gathered = make_plan(memory, len(rows), candidates, store.count, store.spec.size.dim).gathered
    scored = keep + 32 + keep // 32
    if 2 * scored > candidates or candidates > gathered:
        return best(rows, score_candidates(queries, rows, store, gathered), keep, store)
    chosen = np.empty((len(rows), scored), rows.dtype)
    scores = np.empty((len(rows), scored), np.float32)
    outside = np.empty(len(rows), np.float32)
    doubles = double_error(queries, store.largest_norm)
    exact = queries.astype(np.float64)
    threads = min(threads or os.cpu_count() or 1, len(rows))
    many = max(1, min(gathered // candidates, len(rows)) // threads)
    few = min(many, max(1, _AT_ONCE // store.spec.size.dim // candidates))
    many -= many % few

    def score_some(some: slice) -> None:
        # Scored for few at a time, whose vectors stay in the cache, in memory that is filled again and again: there one
        # product of all with all costs less than picking each query's own would.
        space = np.empty((few * candidates, store.spec.size.dim), np.float32)
        for start in range(some.start, some.stop, few):
            group = slice(start, min(start + few, some.stop))
            own, places = np.unique(rows[group], return_inverse=True)
            places = places.reshape(-1, candidates)
            if store.mapped:
                stored = store.vectors(own)
            else:  # every use of a shard costs, so rows are read for many queries
                if (start - some.start) % many == 0:
                    needed = np.unique(rows[start : min(start + many, some.stop)])
                    read = store.vectors(needed)
                stored = read[np.searchsorted(needed, own)]
            vectors = to_float32(stored, space[: len(own)])
            rough = np.take_along_axis(queries[group] @ vectors.T, places, 1)  # [group, candidates]
            order = np.argpartition(-rough, scored, axis=1)[:, : scored + 1]
            kept, outside[group] = order[:, :-1], np.take_along_axis(rough, order[:, -1:], 1)[:, 0]
            chosen[group] = np.take_along_axis(rows[group], kept, 1)
            for i, line in enumerate(np.take_along_axis(places, kept, 1), start):
                scores[i] = score_rows(vectors, line, exact[i], doubles[i])

    share = -(-len(rows) // threads)
    shares = [slice(top, min(top + share, len(rows))) for top in range(0, len(rows), share)]
    with ThreadPoolExecutor(threads) as pool:  # NumPy lets go of the interpreter where the time is spent
        list(pool.map(score_some, shares))
    found, scores = best(chosen, scores, keep, store)
    # Where one that was left out might reach the last place, all are scored.
    highest = outside + single_error(queries, store.largest_norm) + doubles
    close = np.flatnonzero(highest.astype(np.float32) >= scores[:, -1])
    if len(close):
        all_scores = score_candidates(queries[close], rows[close], store, gathered)
        found[close], scores[close] = best(rows[close], all_scores, keep, store)
    return found, scores
