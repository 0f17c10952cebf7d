"""Bounds on the errors of products in float32 and bfloat16, for engines that multiply with torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from starbucks_retrieval.search.scores import single_error

ROUNDING = 2.0**-8  # of bfloat16: rounding errs by no more than this share
LARGEST = 1e38  # numbers near float32's limit could round to infinity in bfloat16


@dataclass(frozen=True)
class ErrorBound:
    """An exact score differs from an approximate one, a, by at most `share` times its size + `error`.

    Attributes:
        share: Below 1.
        error: [queries].
    """

    share: float
    error: np.ndarray

    def __getitem__(self, queries: np.ndarray | slice) -> ErrorBound:
        return ErrorBound(self.share, self.error[queries])

    def highest(self, scores: np.ndarray) -> np.ndarray:
        """Return the exact scores that approximate ones may have at most; both are [queries] or [queries, any]."""
        scores = scores.astype(np.float64)
        return scores + self.share * np.abs(scores) + self._for(scores)

    def lowest(self, scores: np.ndarray) -> np.ndarray:
        """Return the exact scores that approximate ones have at least; both are [queries] or [queries, any]."""
        scores = scores.astype(np.float64)
        return scores - self.share * np.abs(scores) - self._for(scores)

    def floors(self, least: np.ndarray) -> np.ndarray:
        """Return float32 numbers that the approximation of every exact score of at least `least` exceeds; both are [queries].

        Example:
            >>> bound = ErrorBound(0.0, np.array([0.25]))
            >>> bool(0.7499 < bound.floors(np.array([1.0]))[0] < 0.75)
            True
        """
        reached = least - self.error
        floors = (reached / np.where(reached > 0, 1 + self.share, 1 - self.share)).astype(np.float32)
        for _ in range(2):  # for the rounding of this sum and to float32
            floors = np.nextafter(floors, np.float32(-np.inf))
        return floors

    def _for(self, scores: np.ndarray) -> np.ndarray:
        return self.error if scores.ndim == 1 else self.error[:, None]


def bf16_bound(queries: np.ndarray, near: Tensor, largest_move: float, largest_norm: float) -> ErrorBound:
    """Return the bound on products of vectors rounded to bfloat16.

    torch sums in float32, and on CPUs rounds the sum, which is a share of it.

    Args:
        queries: [queries, dim] float32.
        near: The same, rounded to bfloat16, on the device that multiplies.
        largest_move: A distance by which no passage was moved by rounding.
        largest_norm: A length that no passage exceeds.
    """
    moved = np.sqrt(np.square(queries.astype(np.float64) - near.double().cpu().numpy()).sum(axis=1))
    share = ROUNDING / (1 - ROUNDING) if near.device.type == "cpu" else 0.0
    return ErrorBound(share, bf16_error(queries, moved, largest_move, largest_norm))


def bf16_error(queries: np.ndarray, moved: np.ndarray, largest_move: float, largest_norm: float) -> np.ndarray:
    """Return a bound on the error of products of vectors rounded to bfloat16 and summed in float32: [queries].

    |q.p - q'.p'| <= |q - q'| |p| + |q'| |p - p'|, where q' and p' are the rounded vectors. The units that multiply bfloat16
    truncate sums instead of rounding them, and flush the smallest numbers to zero: four times the bound of single precision,
    and a term for the latter.

    Args:
        queries: [queries, dim] float32.
        moved: |q - q'| of each query.
        largest_move: The largest |p - p'|.
        largest_norm: The largest |p|.
    """
    norms = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1)) + moved
    tiny = queries.shape[1] * float(np.finfo(np.float32).tiny) * (1 + norms + largest_norm)
    rounding = (moved * largest_norm + norms * largest_move) * (1 + 1e-9)
    return rounding + 4 * (1 + 2 * ROUNDING) ** 2 * single_error(queries, largest_norm) + tiny


def largest_bf16_move(largest_norm: float, dim: int) -> float:
    """Return a distance by which rounding to bfloat16 moves no vector of at most this length."""
    return ROUNDING * largest_norm * (1 + 1e-9) + dim**0.5 * float(np.finfo(np.float32).tiny)


def smallest_that_matters(sums: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the least sums whose scores may equal those of given ones: [queries] float64.

    Args:
        sums: Inner products in double precision, summed in any order [queries].
        errors: `double_error` of the queries.
    """
    return np.nextafter((sums - errors).astype(np.float32), np.float32(-np.inf)) - errors
