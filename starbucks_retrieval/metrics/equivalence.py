"""Differences of two systems with confidence intervals, and tests that a difference is within a margin.

A test of significance that finds nothing does not show that two systems are on par. Two one-sided tests do
(Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987): the difference is above -margin, and below
+margin. The first of them alone is the test of non-inferiority. The margin is to be named before the figures are seen.

Sources: Schuirmann (1987); for several seeds see `starbucks_retrieval.metrics.seeds`; for correlations with the same gold
scores, the interval of Zou (Psychological Methods 12, 2007, eq. 15), whose covariance is that of Steiger (1980, eq. 3).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.seeds import seeds_error, sum_of_squares
from starbucks_retrieval.metrics.significance import (
    QueryValues,
    adjust,
    are_equal,
    fisher_z,
    paired_values,
    williams_t,
)

_HALVINGS = 60  # of the level of an interval, which find a p-value to 1e-16


class Equivalence(NamedTuple):
    """The p-values of two tests against a margin, that a difference is above -margin, and that it is within; NaN if unknown."""

    non_inferior: float
    equivalent: float


class Difference(ABC):
    """A difference of two systems that has confidence limits."""

    value: float  # the first system less the second

    @property
    @abstractmethod
    def p_value(self) -> float:
        """Two-tailed, of no difference; NaN if it cannot be tested."""

    @abstractmethod
    def limits(self, alpha: float) -> tuple[float, float]:
        """Return the lower and the upper limit that the true difference exceeds with probability alpha each."""

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two-sided confidence interval; NaN if there is none."""
        return self.limits((1 - confidence) / 2)

    def equivalence(self, margin: float) -> Equivalence:
        """Test whether the difference is within a margin, by two one-sided tests.

        Args:
            margin: The largest difference that does not matter, above 0.

        Raises:
            UserError: The margin is not positive.
        """
        check_margin(margin)
        above, below = self._level(0, -margin), self._level(1, margin)
        return Equivalence(above, max(above, below) if above == above and below == below else math.nan)

    def _level(self, side: int, bound: float) -> float:
        """Return the level at which the limit of a side reaches a bound: the p-value of the one-sided test."""
        low, high = 0.0, 1.0
        if not all(map(math.isfinite, self.limits(0.25))):
            return math.nan
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            limit = self.limits(middle)[side]
            inside = limit > bound if side == 0 else limit < bound
            low, high = (low, middle) if inside else (middle, high)
        return high


@dataclass(frozen=True)
class MeanDifference(Difference):
    """The difference of two means over the same queries.

    Attributes:
        value: The difference.
        error: Its standard error.
        freedom: Degrees of freedom of its t distribution.
        count, seeds: Numbers of queries and of seeds, the smaller one if the systems have different numbers.
    """

    value: float
    error: float
    freedom: float
    count: int
    seeds: int = 1

    @property
    def p_value(self) -> float:
        """That of Student's paired t-test if there is one seed."""
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        from scipy.stats import t

        return float(2 * t.sf(abs(self.value) / self.error, self.freedom))

    def limits(self, alpha: float) -> tuple[float, float]:
        """Return the limits of Student's t."""
        from scipy.stats import t

        if not math.isfinite(self.error):
            return math.nan, math.nan
        reach = float(t.isf(alpha, self.freedom)) * self.error if self.error else 0.0
        return self.value - reach, self.value + reach

    def _level(self, side: int, bound: float) -> float:
        from scipy.stats import t

        distance = self.value - bound if side == 0 else bound - self.value
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(t.sf(distance / self.error, self.freedom))


@dataclass(frozen=True)
class CorrelationDifference(Difference):
    """The difference of two correlations.

    For Spearman's correlation, the limits are approximations, as those of Fisher's z are.

    Attributes:
        first, second: The correlations of two systems with the gold scores.
        count: Number of pairs.
        between: The correlation of the two systems over the same pairs; None takes the two for independent, as the
            published tests do.
    """

    first: float
    second: float
    count: int
    between: float | None = None

    @property
    def value(self) -> float:  # type: ignore[override]
        """The difference."""
        return self.first - self.second

    @property
    def p_value(self) -> float:
        """That of Williams' test, or of Fisher's z for independent correlations."""
        if self.between is None:
            return fisher_z(self.first, self.count, self.second, self.count)[1]
        return williams_t(self.first, self.second, self.between, self.count)[1]

    def limits(self, alpha: float) -> tuple[float, float]:
        """Return the limits of Zou, which follow those of Fisher's z of each correlation."""
        if self.count < 4 or not (abs(self.first) < 1 and abs(self.second) < 1):
            return math.nan, math.nan
        reach = -NormalDist().inv_cdf(alpha) / math.sqrt(self.count - 3)
        (low1, high1), (low2, high2) = (
            (math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach)) for r in (self.first, self.second)
        )
        shared, sign = 0.0, math.copysign(1, reach)  # twice the correlation of the two correlations
        if (between := self.between) is not None:
            r, s = self.first, self.second
            covariance = (between - r * s / 2) * (1 - r**2 - s**2 - between**2) + between**3
            shared = 2 * (covariance / ((1 - r**2) * (1 - s**2)))

        def width(one: float, other: float) -> float:
            return sign * math.sqrt(max(0.0, one**2 + other**2 - shared * one * other))

        below = width(self.first - low1, high2 - self.second)
        return self.value - below, self.value + width(high1 - self.first, self.second - low2)


def mean_difference(
    ours: QueryValues | Sequence[QueryValues], theirs: QueryValues | Sequence[QueryValues], same_models: bool = False
) -> MeanDifference:
    """Return the mean difference of two systems over the same queries, and over seeds if both have several.

    With several seeds, it covers other queries and other trainings; see `starbucks_retrieval.metrics.seeds`.

    Args:
        ours, theirs: Values of a system by query id or [queries]; or a list of these, one for each seed. For a system
            without training, repeat them.
        same_models: The seeds of both are the same trained models, in the same order.

    Raises:
        UserError: Values of different queries, one seed against several, or other numbers of seeds of the same models.

    Example:
        >>> found = mean_difference([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.4, 0.6])
        >>> round(found.value, 2), [round(limit, 2) for limit in found.interval()]
        (0.3, [0.17, 0.43])
        >>> round(found.equivalence(0.5).equivalent, 4)
        0.0081
    """
    sides = _by_seed(ours), _by_seed(theirs)
    seeds = _common_seeds(*sides, same_models)
    first, second = (np.stack([paired_values(sides[0][0], run)[1] for run in side]) for side in sides)
    count = first.shape[1]
    if count < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return MeanDifference(math.nan, math.nan, math.nan, count, seeds)
    if seeds == 1:
        differences = (first - second)[0]
        return MeanDifference(float(differences.mean()), _error(differences), count - 1, count)
    error, freedom = seeds_error([first - second] if same_models else [first, -second])
    return MeanDifference(float(first.mean() - second.mean()), error, freedom, count, seeds)


def correlation_difference(
    ours: Sequence[float], theirs: Sequence[float], count: int, between: float | None = None
) -> CorrelationDifference | MeanDifference:
    """Return the difference of two correlations with the same gold scores, without the scores of their pairs.

    With several seeds, its squared standard error is that of the mean difference over the seeds plus that of the mean
    correlations over the pairs, which counts their interaction twice and takes the two correlations for independent:
    it is too large rather than too small.

    Args:
        ours, theirs: The correlations of a system, one for each seed.
        count: Number of pairs.
        between: As in `CorrelationDifference`, for one seed.

    Raises:
        UserError: One seed against several.

    Example:
        >>> one, three = correlation_difference([0.8], [0.7], 900), correlation_difference([0.8] * 3, [0.7] * 3, 900)
        >>> [[round(limit, 3) for limit in found.interval()] for found in (one, three)]
        [[0.06, 0.141], [0.059, 0.141]]
    """
    found = CorrelationDifference(float(np.mean(ours)), float(np.mean(theirs)), count, between)
    if (seeds := _common_seeds(ours, theirs)) == 1:
        return found
    low, high = found.interval()
    parts = [(((high - low) / 2 / NormalDist().inv_cdf(0.975)) ** 2, count - 1)]
    parts += [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in (ours, theirs)]
    square, freedom = sum_of_squares(parts)
    return MeanDifference(found.value, math.sqrt(square), freedom, count, seeds)


def _by_seed(values: QueryValues | Sequence[QueryValues]) -> Sequence[QueryValues]:
    several = isinstance(values, Sequence) and len(values) > 0 and not isinstance(values[0], int | float | np.number)
    return values if several else [values]  # type: ignore[return-value, list-item]


def _common_seeds(ours: Sequence[Any], theirs: Sequence[Any], same_models: bool = False) -> int:
    seeds = min(len(ours), len(theirs))
    if len(ours) != len(theirs) and (same_models or seeds == 1):
        raise UserError(f"{len(ours)} and {len(theirs)} seeds cannot be compared", "give as many runs of both")
    return seeds


def _error(differences: np.ndarray) -> float:
    return 0.0 if are_equal(differences) else float(differences.std(ddof=1)) / math.sqrt(len(differences))


def adjust_equivalence(found: Sequence[Equivalence], correction: str) -> list[Equivalence]:
    """Correct the p-values of several equivalence tests; each of the two kinds is a family of its own.

    Args:
        found: The results.
        correction: As in `adjust`.

    Example:
        >>> [tuple(round(p, 2) for p in one) for one in adjust_equivalence([Equivalence(0.01, 0.02)] * 2, "holm")]
        [(0.02, 0.04), (0.02, 0.04)]
    """
    columns = [adjust([one[kind] for one in found], correction) for kind in (0, 1)]  # type: ignore[arg-type]
    return [Equivalence(*both) for both in zip(*columns)]


def verdict(found: Equivalence, alpha: float = 0.05) -> str:
    """Return what two one-sided tests show: `equivalent`, `not inferior` or `open`.

    Args:
        found: The p-values of both tests, corrected if there are several comparisons.
        alpha: The level that a p-value must be below.

    Example:
        >>> verdict(Equivalence(0.01, 0.01)), verdict(Equivalence(0.01, 0.4)), verdict(Equivalence(0.2, 0.2))
        ('equivalent', 'not inferior', 'open')
    """
    return "equivalent" if found.equivalent < alpha else "not inferior" if found.non_inferior < alpha else "open"


def check_margin(margin: float) -> None:
    """Raise UserError unless a margin of equivalence is a positive number."""
    if not 0 < margin < math.inf:
        problem = f"a margin of {margin:g} leaves no room for a difference"
        raise UserError(problem, "name the largest one that does not matter: 0.01")
