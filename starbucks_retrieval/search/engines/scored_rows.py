"""The rows whose approximate scores are high enough, each with its exact score: found and scored in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines.rounding import ErrorBound, smallest_that_matters
from starbucks_retrieval.search.ranking import ranked_scores
from starbucks_retrieval.search.threads import share_lines
from starbucks_retrieval.store.dtypes import to_float32


def convert(stored: np.ndarray, vectors: Tensor, loops: ModuleType | None) -> None:
    """Convert stored vectors to float32 or bfloat16 on a CPU, into `vectors`; both are [rows, dim] and contiguous."""
    if loops is None:
        vectors.copy_(torch.from_numpy(to_float32(stored)))
    elif vectors.dtype == torch.bfloat16:
        loops.to_bfloat16(stored, vectors.view(torch.int16).numpy())
    else:
        loops.to_single(stored, vectors.numpy())


class ScoredRows:
    """Multiplies passages with queries, and keeps those above a floor with exact scores, summed in double precision.

    A vector is scored while it is in the processor's cache, which takes less time than selecting the best by their
    approximate scores and reading their vectors again.

    Args:
        queries: [queries, dim] float32.
        near: The same as a tensor of the dtype that is multiplied, on a CPU.
        floors: Passages are skipped whose approximate scores are not above these, [queries] float32; -inf at first if
            nothing is known.
        bound: Of the approximate scores.
        errors: Bounds on the errors of sums in double precision, [queries].
        depth: Passages that the search keeps for each query.
        kept: Passages to keep for each query, at least `depth`.
        rows: Passages of a product.
        loops: What `compiled_loops` returns.
    """

    def __init__(
        self,
        queries: np.ndarray,
        near: Tensor,
        floors: np.ndarray,
        bound: ErrorBound,
        errors: np.ndarray,
        depth: int,
        kept: int,
        rows: int,
        loops: ModuleType,
    ) -> None:
        self.queries, self.near, self.loops = queries, near, loops
        self.bound, self.errors = bound, errors
        self.depth, self.kept = depth, kept
        (count, dim), self.width = queries.shape, 3 * kept + rows
        self.vectors = torch.empty(rows, dim, dtype=near.dtype)
        self.scores = torch.empty(rows, count, dtype=near.dtype)
        self.floors, self.ceiling = floors.copy(), np.full(count, -np.inf)
        self.sums, self.rows = np.empty((count, self.width)), np.empty((count, self.width), np.int64)
        self.filled = np.zeros(count, np.int64)

    def add(self, first: int, stored: np.ndarray) -> None:
        """Add the consecutive passages from row `first` on: [any, dim] float16 or float32."""
        for start in range(0, len(stored), len(self.vectors)):
            self._add(first + start, np.ascontiguousarray(stored[start : start + len(self.vectors)]))

    def _add(self, first: int, stored: np.ndarray) -> None:
        vectors, scores = self.vectors[: len(stored)], self.scores[: len(stored)]
        convert(stored, vectors, self.loops)
        exact = vectors.numpy() if vectors.dtype == torch.float32 else stored
        torch.mm(vectors, self.near.T, out=scores)
        if len(stored) >= self.depth and np.isneginf(self.floors).any():
            [ranked] = ranked_scores(scores.T.float().numpy(), (self.depth,))
            self._raise_floors(slice(None), smallest_that_matters(self.bound.lowest(ranked), self.errors))
        full = np.flatnonzero(self.filled + len(stored) > self.width)
        if len(full):
            self._keep_best(full)
        lists = self.sums, self.rows, self.filled
        self.loops.append_scored(_comparable(scores), self.floors, first, exact, self.queries, *lists)

    def _keep_best(self, queries: np.ndarray) -> None:
        for query in queries:
            sums, rows = self.sums[query, : self.filled[query]], self.rows[query, : self.filled[query]]
            order = np.argpartition(-sums, self.kept)
            self.ceiling[query] = max(self.ceiling[query], sums[order[self.kept]])
            best = order[: self.kept]
            self.sums[query, : self.kept], self.rows[query, : self.kept] = sums[best], rows[best]
            self.filled[query] = self.kept
        reached = -np.partition(-self.sums[queries, : self.kept], self.depth - 1, axis=1)[:, self.depth - 1]
        self._raise_floors(queries, smallest_that_matters(reached, self.errors[queries]))

    def _raise_floors(self, queries: np.ndarray | slice, least: np.ndarray) -> None:
        floors = self.bound[queries].floors(least)
        self.floors[queries] = np.maximum(self.floors[queries], floors)

    def lists(self, queries: slice, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return exact scores and rows of some queries, [queries, width], in any order; -inf and row 0 fill lists up."""
        sums, rows = self.sums[queries, :width], self.rows[queries, :width]
        empty = np.arange(width) >= self.filled[queries, None]
        sums[empty], rows[empty] = -np.inf, 0
        return sums, rows

    def highest_outside(self) -> np.ndarray:
        """Return bounds that the exact scores of no other row exceed: [queries], -inf where there is no other."""
        with np.errstate(invalid="ignore"):
            skipped = self.bound.highest(self.floors)
        return np.maximum(self.ceiling, np.where(np.isneginf(self.floors), -np.inf, skipped))


def best_scored(parts: Sequence[ScoredRows], count: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the best of lists that saw different passages.

    Args:
        parts: Lists of the same queries.
        count: Passages to return for each query.
        threads: CPU threads at most.

    Returns:
        Exact scores and rows, [queries, count] in any order, with -inf and row 0 where there are fewer; and a bound that
        the exact scores of all other rows do not exceed: [queries].
    """
    queries, widths = len(parts[0].queries), [int(part.filled.max()) for part in parts]
    widths[0] += max(0, count - sum(widths))
    sums, rows = np.empty((queries, count)), np.empty((queries, count), np.int64)
    outside = np.max([part.highest_outside() for part in parts], axis=0)

    def select(lines: slice) -> None:
        lists = (part.lists(lines, width) for part, width in zip(parts, widths))
        all_sums, all_rows = (np.concatenate(several, axis=1) for several in zip(*lists))
        if all_sums.shape[1] > count:
            order = np.argpartition(-all_sums, count, axis=1)
            next_one = np.take_along_axis(all_sums, order[:, count : count + 1], 1)[:, 0]
            outside[lines] = np.maximum(outside[lines], next_one)
            all_sums, all_rows = (np.take_along_axis(each, order[:, :count], 1) for each in (all_sums, all_rows))
        sums[lines], rows[lines] = all_sums, all_rows

    share_lines(queries, queries * sum(widths), threads, select)
    return sums, rows, outside


def _comparable(scores: Tensor) -> np.ndarray:
    """Scores as Numba knows them: float32, or the bits of bfloat16 as unsigned numbers."""
    if scores.dtype == torch.bfloat16:
        return scores.view(torch.int16).numpy().view(np.uint16)
    return scores.numpy()
