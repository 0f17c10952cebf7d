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
from starbucks_retrieval.threads import share_lines

_CONVERTED = 2**20  # numbers to convert at once: they stay in the cache


class ScoredLists(NamedTuple):
    """Lists of rows with their exact scores.

    Attributes:
        scores: [queries, room] float32.
        rows: [queries, room] int64.
        filled: Lengths of the lists, [queries] int64.
    """

    scores: np.ndarray
    rows: np.ndarray
    filled: np.ndarray

    @classmethod
    def empty(cls, queries: int, room: int) -> ScoredLists:
        """Return empty lists."""
        shape = queries, room
        return cls(np.empty(shape, np.float32), np.empty(shape, np.int64), np.zeros(queries, np.int64))

    def of(self, queries: slice) -> ScoredLists:
        """Return the lists of consecutive queries."""
        return ScoredLists(*(part[queries] for part in self))


def convert(stored: np.ndarray, vectors: Tensor, loops: ModuleType | None) -> None:
    """Convert stored vectors to float32 or bfloat16 on a CPU, into `vectors`; both are [rows, dim] and contiguous."""
    if loops is None:
        vectors.copy_(torch.from_numpy(to_float32(stored)))
    elif vectors.dtype == torch.bfloat16:
        loops.to_bfloat16(stored, vectors.view(torch.int16).numpy())
    else:
        loops.to_single(stored, vectors.numpy())


def converted_at_once(rows: int, dim: int) -> int:
    """Return how many vectors to convert at once: those of one product, or of several whose vectors are short.

    Threads wait for each other's turn in Python between short calls.

    Args:
        rows: Vectors of a product.
        dim: Their length.
    """
    return max(1, _CONVERTED // (rows * dim)) * rows


def list_width(kept: int) -> int:
    """Return the room of a list that is cut to so many rows when it has three times as many and a product is over, or is full."""
    return 3 * kept + 256


class ScoredRows:
    """Multiplies passages with queries, and keeps those above a floor with their exact scores.

    A vector is scored while it is in the processor's cache, which takes less time than selecting the best by their
    approximate scores and reading their vectors again.

    Args:
        queries: [queries, dim] float32.
        near: The same as a tensor of the dtype that is multiplied, on a CPU.
        floors: Passages are skipped whose approximate scores are not above these, [queries] float32; -inf at first if
            nothing is known.
        bound: Of the approximate scores.
        errors: `double_error` of the queries, [queries].
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
        (count, dim), width = queries.shape, list_width(kept)
        self.vectors = torch.empty(converted_at_once(rows, dim), dim, dtype=near.dtype)
        self.products = torch.empty(rows, count, dtype=near.dtype)
        self.floors, self.ceiling = floors.copy(), np.full(count, -np.inf)
        self.comparable_floors = self._comparable_floors()
        self.lists = ScoredLists.empty(count, width)

    def add(self, first: int, stored: np.ndarray) -> None:
        """Add the consecutive passages from row `first` on: [any, dim] float16 or float32."""
        for start in range(0, len(stored), len(self.vectors)):
            part = np.ascontiguousarray(stored[start : start + len(self.vectors)])
            vectors = self.vectors[: len(part)]
            convert(part, vectors, self.loops)
            for low in range(0, len(part), len(self.products)):
                some = slice(low, low + len(self.products))
                self._add(first + start + low, part[some], vectors[some])

    def _add(self, first: int, stored: np.ndarray, vectors: Tensor) -> None:
        products = self.products[: len(stored)]
        exact = vectors.numpy() if vectors.dtype == torch.float32 else stored
        torch.mm(vectors, self.near.T, out=products)
        if len(stored) >= self.depth and np.isneginf(self.floors).any():
            [ranked] = ranked_scores(products.T.contiguous().float().numpy(), (self.depth,))
            self._raise_floors(slice(None), smallest_that_matters(self.bound.lowest(ranked), self.errors))
        comparable, taken = _comparable(products), 0
        while taken < len(stored):
            some = comparable[taken:], self.comparable_floors, first + taken, exact[taken:]
            taken += self.loops.append_scored(*some, self.queries, self.errors, *self.lists)
            long = np.flatnonzero(self.lists.filled > 3 * self.kept)
            if len(long):
                self._keep_best(long)

    def _keep_best(self, queries: np.ndarray) -> None:
        for query in queries:
            filled = self.lists.filled[query]
            scores, rows = self.lists.scores[query, :filled], self.lists.rows[query, :filled]
            order = np.argpartition(-scores, self.kept)
            self.ceiling[query] = max(self.ceiling[query], np.nextafter(scores[order[self.kept]], np.float32(np.inf)))
            best = order[: self.kept]
            scores[: self.kept], rows[: self.kept] = scores[best], rows[best]
            self.lists.filled[query] = self.kept
        reached = -np.partition(-self.lists.scores[queries, : self.kept], self.depth - 1, axis=1)[:, self.depth - 1]
        self._raise_floors(queries, smallest_that_matters(reached, self.errors[queries]))

    def _raise_floors(self, queries: np.ndarray | slice, least: np.ndarray) -> None:
        floors = self.bound[queries].floors(least)
        self.floors[queries] = np.maximum(self.floors[queries], floors)
        self.comparable_floors = self._comparable_floors()

    def _comparable_floors(self) -> np.ndarray:
        return self.loops.bfloat16_floors(self.floors) if self.near.dtype == torch.bfloat16 else self.floors

    def highest_outside(self) -> np.ndarray:
        """Return bounds that the inner products of no other row exceed: [queries], -inf where there is no other."""
        with np.errstate(invalid="ignore"):
            skipped = self.bound.highest(self.floors)
        return np.maximum(self.ceiling, np.where(np.isneginf(self.floors), -np.inf, skipped))


def ranked_lists(parts: Sequence[ScoredRows], threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of lists that saw different passages.

    Args:
        parts: Lists of the same queries.
        threads: How many share the queries.

    Returns:
        Rows and scores, both [queries, depth or more], by descending score. All rows of the lists are there whose scores equal
        the one at `depth`. Where there are fewer, row 0 follows with the score -inf.
    """
    depth, loops = parts[0].depth, parts[0].loops
    lengths = np.sum([part.lists.filled for part in parts], axis=0)
    room = max(depth, int(lengths.max()))
    best = ScoredLists.empty(len(lengths), room)

    def rank(lines: slice) -> None:
        joined = ScoredLists.empty(len(lengths[lines]), room)
        for part in parts:
            loops.append_lists(*part.lists.of(lines), *joined)
        loops.rank_lists(*joined, depth, *best.of(lines))

    share_lines(len(lengths), int(lengths.sum()), threads, rank)
    width = max(depth, int(best.filled.max()))
    rows, scores = best.rows[:, :width], best.scores[:, :width]
    if (best.filled < width).any():
        missing = np.arange(width) >= best.filled[:, None]
        rows[missing], scores[missing] = 0, -np.inf
    return rows, scores


def _comparable(scores: Tensor) -> np.ndarray:
    """Scores as Numba knows them: float32, or the bits of bfloat16 as unsigned numbers."""
    if scores.dtype == torch.bfloat16:
        return scores.view(torch.int16).numpy().view(np.uint16)
    return scores.numpy()
