"""The rows whose approximate scores are high enough, each with its exact score: found and scored in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines.rounding import ErrorBound, smallest_that_matters
from starbucks_retrieval.search.ranking import ranked_scores
from starbucks_retrieval.store.dtypes import to_float32

NO_SUM = float(np.finfo(np.float32).min)  # lower than any sum


class ScoredList(NamedTuple):
    """Rows of one query and their exact scores, in any order: [any] int64 and [any] float64."""

    rows: np.ndarray
    sums: np.ndarray


def convert(stored: np.ndarray, vectors: Tensor, loops: ModuleType | None) -> None:
    """Convert stored vectors to float32 or bfloat16 on a CPU, into `vectors`; both are [rows, dim] and contiguous."""
    if loops is None:
        vectors.copy_(torch.from_numpy(to_float32(stored)))
    elif vectors.dtype == torch.bfloat16:
        loops.to_bfloat16(stored, vectors.view(torch.int16).numpy())
    else:
        loops.to_single(stored, vectors.numpy())


def list_width(kept: int) -> int:
    """Return the room of a list that is cut to so many rows when it has three times as many and a product is over, or is full."""
    return 3 * kept + 256


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
        (count, dim), self.width = queries.shape, list_width(kept)
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
            [ranked] = ranked_scores(scores.T.contiguous().float().numpy(), (self.depth,))
            self._raise_floors(slice(None), smallest_that_matters(self.bound.lowest(ranked), self.errors))
        comparable, lists, taken = _comparable(scores), (self.sums, self.rows, self.filled), 0
        while taken < len(stored):
            some = comparable[taken:], self.floors, first + taken, exact[taken:]
            taken += self.loops.append_scored(*some, self.queries, *lists)
            long = np.flatnonzero(self.filled > 3 * self.kept)
            if len(long):
                self._keep_best(long)

    def _keep_best(self, queries: np.ndarray) -> None:
        for query in queries:
            rows, sums = self.list_of(query)
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

    def list_of(self, query: int) -> ScoredList:
        """Return what is kept for a query."""
        return ScoredList(self.rows[query, : self.filled[query]], self.sums[query, : self.filled[query]])

    def highest_outside(self) -> np.ndarray:
        """Return bounds that the exact scores of no other row exceed: [queries], -inf where there is no other."""
        with np.errstate(invalid="ignore"):
            skipped = self.bound.highest(self.floors)
        return np.maximum(self.ceiling, np.where(np.isneginf(self.floors), -np.inf, skipped))


def needed_lists(parts: Sequence[ScoredRows]) -> tuple[list[ScoredList], np.ndarray, np.ndarray]:
    """Return what may be among the best of lists that saw different passages.

    Args:
        parts: Lists of the same queries.

    Returns:
        The list of each query; bounds that the exact scores of rows outside these lists do not exceed, [queries]; and the
        least sums that belong to the lists, [queries]. If the former is not below the latter, other rows may be needed too.
    """
    depth, lists = parts[0].depth, []
    reached = np.full(len(parts[0].errors), -np.inf)
    for query in range(len(reached)):
        rows, sums = (np.concatenate(several) for several in zip(*(part.list_of(query) for part in parts)))
        if len(sums) >= depth:
            reached[query] = np.partition(sums, -depth)[-depth]
        lists.append(ScoredList(rows, sums))
    least = smallest_that_matters(reached, parts[0].errors)
    for query, (rows, sums) in enumerate(lists):
        needed = np.flatnonzero(sums >= least[query])
        lists[query] = ScoredList(rows.take(needed), sums.take(needed))
    return lists, np.max([part.highest_outside() for part in parts], axis=0), least


def filled_up(lists: Sequence[ScoredList]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and exact scores, [queries, longest list]; shorter lists are filled up with row 0 and `NO_SUM`."""
    shape = len(lists), max(len(rows) for rows, _ in lists)
    all_rows, all_sums = np.zeros(shape, np.int64), np.full(shape, NO_SUM)
    for query, (rows, sums) in enumerate(lists):
        all_rows[query, : len(rows)], all_sums[query, : len(sums)] = rows, sums
    return all_rows, all_sums


def _comparable(scores: Tensor) -> np.ndarray:
    """Scores as Numba knows them: float32, or the bits of bfloat16 as unsigned numbers."""
    if scores.dtype == torch.bfloat16:
        return scores.view(torch.int16).numpy().view(np.uint16)
    return scores.numpy()
