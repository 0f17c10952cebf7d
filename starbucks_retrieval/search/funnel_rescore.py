"""One later step of a funnel: the best of a shortlist at another size, with exact scores, reading nothing else."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval.search.plan import make_plan
from starbucks_retrieval.search.scores import best, double_error, score_candidates, score_rows, single_error
from starbucks_retrieval.store import EmbeddingStore

_HALF_BITS = np.int32(-0x70002000)  # 0x8fffe000: a sign, five bits of exponent, ten of mantissa
_HALF_SCALE = np.float32(2.0**112)  # between the two formats' biases of the exponent
_AT_ONCE = 2**16  # numbers that stay in the cache between the passes over them


def rescore(
    queries: np.ndarray, rows: np.ndarray, keep: int, store: EmbeddingStore, memory: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` best of each query's own rows: (rows, scores), both [queries, min(keep, candidates)].

    `queries`: [queries, dim]; `rows`: [queries, candidates], distinct in each line. Gives what scoring all of them
    exactly and ordering them by `best` gives, bit for bit; those that cannot be among the best by their score in
    single precision are spared that.
    """
    held = _Singles(store)
    candidates = rows.shape[1]
    gathered = make_plan(memory, len(rows), candidates, store.count, store.spec.size.dim).gathered
    scored = keep + 32 + keep // 32
    if 2 * scored > candidates or candidates > gathered:
        return best(rows, score_candidates(queries, rows, held, gathered), keep, store)
    chosen = np.empty((len(rows), scored), rows.dtype)
    scores = np.empty((len(rows), scored), np.float32)
    outside = np.empty(len(rows), np.float32)
    doubles = double_error(queries, store.largest_norm)
    exact = queries.astype(np.float64)
    height = max(1, gathered // candidates)
    for top in range(0, len(rows), height):
        needed, places = np.unique(rows[top : top + height], return_inverse=True)
        vectors = held.vectors(needed)
        for i, own in enumerate(places.reshape(-1, candidates), top):
            rough = vectors[own] @ queries[i]
            order = np.argpartition(-rough, scored)
            chosen[i], outside[i] = rows[i, order[:scored]], rough[order[scored]]
            scores[i] = score_rows(vectors, own[order[:scored]], exact[i], doubles[i])
    found, scores = best(chosen, scores, keep, store)
    # Where one that was left out might reach the last place, all are scored.
    highest = outside + single_error(queries, store.largest_norm) + doubles
    close = np.flatnonzero(highest.astype(np.float32) >= scores[:, -1])
    if len(close):
        all_scores = score_candidates(queries[close], rows[close], held, gathered)
        found[close], scores[close] = best(rows[close], all_scores, keep, store)
    return found, scores


class _Singles:
    """A store whose vectors come in single precision."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.count, self.largest_norm, self.id_bytes = store.count, store.largest_norm, store.id_bytes

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """[rows, dim] float32."""
        stored = self._store.vectors(rows)
        return singles(stored) if stored.dtype == np.float16 else stored


def singles(halves: np.ndarray) -> np.ndarray:
    """Finite float16 numbers as float32, exactly; a quarter of the time that NumPy's own conversion takes.

    The bits of a half, moved into those of a single, are the number but for a power of two, subnormal ones included.
    """
    out = np.empty(halves.shape, np.float32)
    source, target = np.ascontiguousarray(halves).reshape(-1).view(np.int16), out.reshape(-1)
    for start in range(0, len(source), _AT_ONCE):
        some = target[start : start + _AT_ONCE]
        bits = some.view(np.int32)
        bits[:] = source[start : start + _AT_ONCE]  # keeps the sign at the top
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _HALF_BITS, out=bits)
        np.multiply(some, _HALF_SCALE, out=some)
    return out
