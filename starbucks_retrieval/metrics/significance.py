"""Tests of significance: paired tests over queries, tests of two correlations, and corrections for several tests.

All tests are two-tailed. Paired tests compare two systems on the same queries; tests of correlations compare the
correlations of two systems with the same gold scores (STS). scipy computes the paired tests.

Sources: Smucker, Allan and Carterette, "A comparison of statistical significance tests for information retrieval
evaluation" (CIKM 2007) for paired tests; Fisher (1921) for correlations of independent samples; Williams' T2 for two
correlations with one variable in common, as Steiger (Psychological Bulletin 87, 1980, eq. 7) recommends; Holm
(Scandinavian Journal of Statistics 6, 1979) for the correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from starbucks_retrieval.errors import UserError

Test = Literal["t", "randomization", "bootstrap"]
Correction = Literal["holm", "bonferroni", "none"]
QueryValues = Mapping[str, float] | ArrayLike  # values by query id, or [queries]

RESAMPLES = 9999
TEST_NAMES = {
    "t": "paired t-test",
    "randomization": "paired randomisation test",
    "bootstrap": "paired bootstrap",
    "fisher": "Fisher's z, samples taken as independent",
    "williams": "Williams' test of dependent correlations",
}
_ELEMENTS = 1 << 22  # numbers that resampling holds in memory at a time


@dataclass(frozen=True)
class SignificanceResult:
    """The result of a test.

    Attributes:
        difference: Difference of the means or correlations, first minus second.
        p_value: Two-tailed p-value; NaN for fewer than two pairs and for values that are NaN.
        count: Number of pairs.
        interval: 95 % percentile interval of the difference for `bootstrap`, else None.
    """

    test: str
    difference: float
    p_value: float
    count: int
    interval: tuple[float, float] | None = None


def paired_test(
    ours: QueryValues,
    theirs: QueryValues,
    test: Test = "t",
    *,
    seed: int = 42,
    resamples: int = RESAMPLES,
) -> SignificanceResult:
    """Test the mean difference of two systems on the same queries, two-tailed. Equal systems have p = 1.

    Args:
        ours, theirs: Values of the two systems by query id, or sequences [queries] in the same order.
        test: `t`: Student's paired t-test. `randomization`: Fisher's randomisation test, which flips the signs of
            differences at random; exact if there are at most `resamples` combinations (by default up to 13 queries).
            `bootstrap`: draws queries with replacement; the p-value is the level whose percentile interval reaches zero.
        seed, resamples: Seed and number of samples of `randomization` and `bootstrap`.

    Raises:
        UserError: An unknown test, or values of different queries.

    Example:
        >>> ours, theirs = [0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.4, 0.6]
        >>> result = paired_test(ours, theirs)
        >>> round(result.difference, 2), round(result.p_value, 4)
        (0.3, 0.0052)
    """
    if test not in get_args(Test):
        raise UserError(f"unknown test {test!r}", f"use one of {', '.join(get_args(Test))}")
    first, second = paired_values(ours, theirs)
    differences = first - second
    count = len(differences)
    mean = float(np.mean(differences)) if count else math.nan
    if count < 2 or not np.isfinite(differences).all():
        return SignificanceResult(test, mean, math.nan, count)
    if not differences.any():
        return SignificanceResult(test, 0.0, 1.0, count, (0.0, 0.0) if test == "bootstrap" else None)
    if test == "t":
        from scipy.stats import ttest_rel

        # The t-value of equal differences is infinite.
        p_value = 0.0 if are_equal(differences) else float(ttest_rel(first, second).pvalue)
        return SignificanceResult(test, mean, p_value, count)
    rng, batch = np.random.default_rng(seed), max(1, _ELEMENTS // count)
    if test == "randomization":
        return SignificanceResult(test, mean, _sign_flips(differences, rng, batch, resamples), count)
    p_value, interval = _bootstrap([differences], np.mean, rng, batch, resamples)
    return SignificanceResult(test, mean, p_value, count, interval)


def fisher_z(first: float, first_count: int, second: float, second_count: int) -> tuple[float, float]:
    """Test two correlations of independent samples by Fisher's z transformation.

    The Starbucks paper (arXiv 2410.13230, Table 4) uses this test. Systems scored on the same pairs agree far more than
    independent ones, so it misses differences that `compare_correlations` finds.

    Returns:
        (z, two-tailed p-value) of two correlations and their numbers of pairs; NaN for fewer than 4 pairs.
    """
    if first_count < 4 or second_count < 4 or not (abs(first) <= 1 and abs(second) <= 1):
        return math.nan, math.nan
    if first == second:
        return 0.0, 1.0
    from scipy.stats import norm

    with np.errstate(divide="ignore"):
        distance = float(np.arctanh(first) - np.arctanh(second))
    z = distance / math.sqrt(1 / (first_count - 3) + 1 / (second_count - 3))
    return z, float(2 * norm.sf(abs(z)))


def williams_t(first: float, second: float, between: float, count: int) -> tuple[float, float]:
    """Test two correlations that share a variable, over the same pairs, by Williams' T2 (Steiger 1980, eq. 7).

    The test holds for Pearson's correlation of normal variables; for Spearman's it is an approximation.

    Args:
        first, second: Correlations of the two systems with the gold scores.
        between, count: Correlation of the two systems with each other, and the number of pairs.

    Returns:
        (t, two-tailed p-value with count - 3 degrees of freedom); NaN for fewer than 4 pairs.

    Example:
        >>> [round(value, 3) for value in williams_t(0.85, 0.80, 0.9, 100)]
        [2.108, 0.038]
    """
    if count < 4 or not all(abs(value) <= 1 for value in (first, second, between)):
        return math.nan, math.nan
    if first == second:
        return 0.0, 1.0
    from scipy.stats import t

    determinant = max(0.0, 1 - first**2 - second**2 - between**2 + 2 * first * second * between)
    mean = (first + second) / 2
    spread = 2 * (count - 1) / (count - 3) * determinant + mean**2 * (1 - between) ** 3
    if spread <= 0:
        return math.copysign(math.inf, first - second), 0.0
    value = (first - second) * math.sqrt((count - 1) * (1 + between) / spread)
    return value, float(2 * t.sf(abs(value), count - 3))


def compare_correlations(
    gold: ArrayLike,
    ours: ArrayLike,
    theirs: ArrayLike,
    test: Literal["williams", "bootstrap", "fisher"] = "williams",
    *,
    pearson: bool = False,
    seed: int = 42,
    resamples: int = 1999,
) -> SignificanceResult:
    """Test the difference of two systems' correlations with the same gold scores, two-tailed.

    Args:
        gold: Gold scores [pairs].
        ours, theirs: Scores of the two systems [pairs].
        test: `williams` (see `williams_t`), `fisher` (see `fisher_z`), or `bootstrap`, which draws pairs with replacement
            and ranks each sample anew: no assumptions, a few seconds for ten thousand pairs.
        pearson: Use Pearson's correlation instead of Spearman's.
        seed, resamples: Seed and number of samples of the bootstrap.

    Raises:
        UserError: An unknown test, or different numbers of scores.
    """
    from scipy.stats import rankdata

    if test not in ("williams", "bootstrap", "fisher"):
        raise UserError(f"unknown test {test!r}", "use one of williams, bootstrap, fisher")
    columns = [np.asarray(column, dtype=np.float64) for column in (gold, ours, theirs)]
    if len({column.shape for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise UserError(f"{lengths} scores cannot be paired", "score the same pairs")
    count = len(columns[0])
    if count < 4 or not all(np.isfinite(column).all() and np.ptp(column) > 0 for column in columns):
        return SignificanceResult(test, math.nan, math.nan, count)

    def ranked(column: np.ndarray) -> np.ndarray:
        return column if pearson else rankdata(column, axis=-1)

    def difference(gold: np.ndarray, ours: np.ndarray, theirs: np.ndarray, axis: int = -1) -> np.ndarray:
        gold = ranked(gold)
        return _correlation(gold, ranked(ours)) - _correlation(gold, ranked(theirs))

    gold, ours, theirs = (ranked(column) for column in columns)
    first, second = float(_correlation(gold, ours)), float(_correlation(gold, theirs))
    if test == "fisher":
        return SignificanceResult(test, first - second, fisher_z(first, count, second, count)[1], count)
    if test == "williams":
        between = float(_correlation(ours, theirs))
        return SignificanceResult(test, first - second, williams_t(first, second, between, count)[1], count)
    if np.array_equal(ours, theirs):
        return SignificanceResult(test, 0.0, 1.0, count, (0.0, 0.0))
    batch = max(1, _ELEMENTS // (4 * count))
    p_value, interval = _bootstrap(columns, difference, np.random.default_rng(seed), batch, resamples)
    return SignificanceResult(test, first - second, p_value, count, interval)


def adjust(p_values: Sequence[float], correction: Correction = "holm") -> list[float]:
    """Correct p-values of several tests; a difference is significant at alpha if its corrected p-value is below alpha.

    Args:
        p_values: Raw p-values of m tests, in any order. NaN stays NaN and does not count.
        correction: `bonferroni` multiplies every p-value by m. `holm` multiplies the smallest by m, the next by m - 1,
            and so on, and lets no value fall below the one before it (Holm 1979): it controls the same error rate as
            Bonferroni's correction and finds more. Both are capped at 1. `none` changes nothing.

    Returns:
        The corrected p-values, in the order given.

    Raises:
        UserError: An unknown correction.

    Example:
        >>> [round(p, 4) for p in adjust([0.04, 0.01, 0.02])]
        [0.04, 0.03, 0.04]
    """
    if correction not in get_args(Correction):
        raise UserError(f"unknown correction {correction!r}", f"use one of {', '.join(get_args(Correction))}")
    adjusted = np.array(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(adjusted))
    if correction == "bonferroni":
        adjusted[tested] = np.minimum(adjusted[tested] * len(tested), 1)
    elif correction == "holm":
        ascending = tested[np.argsort(adjusted[tested], kind="stable")]
        steps = adjusted[ascending] * np.arange(len(tested), 0, -1)
        adjusted[ascending] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted.tolist()


def paired_values(ours: QueryValues, theirs: QueryValues) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both systems [queries], paired by query id. Raises UserError for values of other queries."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if ours.keys() != theirs.keys():
            unpaired = ours.keys() ^ theirs.keys()
            raise UserError(
                f"the values are not of the same queries: {len(unpaired)} are of one system only, e.g. {min(unpaired)!r}",
                "score both with the same judgements",
            )
        theirs = [theirs[query_id] for query_id in ours]
        ours = list(ours.values())
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(
            f"values of shapes {first.shape} and {second.shape} cannot be paired", "give one value per query and system"
        )
    return first, second


def are_equal(differences: np.ndarray) -> bool:
    """Return whether differences [queries] have no variance; what rounding leaves of it is no evidence."""
    return bool(np.ptp(differences) <= 1e-12 * np.abs(differences).max())


def _sign_flips(differences: np.ndarray, rng: np.random.Generator, batch: int, resamples: int) -> float:
    from scipy.stats import permutation_test

    # With one sample, scipy's permutation type for paired samples flips the signs of the observations.
    options = {"permutation_type": "samples", "n_resamples": resamples, "batch": batch, "vectorized": True, "rng": rng}
    return float(permutation_test((differences,), np.mean, **options).pvalue)


def _bootstrap(
    columns: Sequence[np.ndarray], statistic: Callable, rng: np.random.Generator, batch: int, resamples: int
) -> tuple[float, tuple[float, float]]:
    """Return the two-tailed level whose percentile interval reaches zero, and the 95 % percentile interval."""
    from scipy.stats import bootstrap

    options = {"n_resamples": resamples, "batch": batch, "vectorized": True, "method": "percentile", "rng": rng}
    drawn = bootstrap(columns, statistic, paired=len(columns) > 1, **options)
    found = drawn.bootstrap_distribution
    tail = min(int(np.sum(found <= 0)), int(np.sum(found >= 0)))
    p_value = min(1.0, 2 * (1 + tail) / (1 + resamples))
    return p_value, (float(drawn.confidence_interval.low), float(drawn.confidence_interval.high))


def _correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation along the last axis."""
    first = first - first.mean(-1, keepdims=True)
    second = second - second.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
