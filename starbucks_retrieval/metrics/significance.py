"""Whether a difference could be chance: paired tests over queries, tests of two correlations, and corrections.

Everything is two-tailed. Paired tests take one figure a query from each of two systems; tests of correlations take what
STS gives, one correlation with the gold scores for each system. scipy does the work where it can; the tests of
correlations are formulas of a line: Fisher (1921) for independent samples, and Williams' T2 for two correlations that
share a variable, as Steiger (Psychological Bulletin 87, 1980, eq. 7) recommends it. So are the corrections: Bonferroni's,
and Holm's (Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from starbucks_retrieval.errors import UserError

Test = Literal["t", "randomization", "bootstrap"]
Correction = Literal["holm", "bonferroni", "none"]

RESAMPLES = 9999
TEST_NAMES = {
    "t": "paired t-test",
    "randomization": "paired randomisation test",
    "bootstrap": "paired bootstrap",
    "fisher": "Fisher's z, samples taken as independent",
    "williams": "Williams' test of dependent correlations",
}
_ELEMENTS = 1 << 22  # numbers that resampling holds at a time


@dataclass(frozen=True)
class SignificanceResult:
    """What a test found: `difference` of the means or correlations, first minus second, over `count` pairs.

    `p_value` is NaN where there is nothing to test: fewer than two pairs, or a figure that is NaN. `interval` is the
    bootstrap's 95 % percentile interval of the difference, None for other tests.
    """

    test: str
    difference: float
    p_value: float
    count: int
    interval: tuple[float, float] | None = None


def paired_test(
    ours: Mapping[str, float] | ArrayLike,
    theirs: Mapping[str, float] | ArrayLike,
    test: Test = "t",
    *,
    seed: int = 42,
    resamples: int = RESAMPLES,
) -> SignificanceResult:
    """Test the mean difference of two systems' figures for the same queries, two-tailed.

    `ours` and `theirs` are figures by query id, paired by it, or two sequences of one length in one order.
    t: Student's paired t-test. randomization: the signs of differences are flipped at random (Fisher's test; exact
    when there are no more than `resamples` ways, so up to 13 queries by default). bootstrap: queries are drawn with
    replacement; the p-value is the level at which the percentile interval just reaches zero. `seed` and `resamples`
    are of the last two. Systems without any difference have p = 1.

    Raises UserError for unknown tests, and for figures of different queries.
    """
    if test not in get_args(Test):
        raise UserError(f"there is no test {test!r}", f"take one of {', '.join(get_args(Test))}")
    first, second = _paired(ours, theirs)
    differences = first - second
    count = len(differences)
    if count < 2 or not np.isfinite(differences).all():
        return SignificanceResult(test, float(np.mean(differences)) if count else math.nan, math.nan, count)
    mean = float(np.mean(differences))
    if not differences.any():
        return SignificanceResult(test, 0.0, 1.0, count, (0.0, 0.0) if test == "bootstrap" else None)
    if test == "t":
        return SignificanceResult(test, mean, _t(first, second), count)
    rng, batch = np.random.default_rng(seed), max(1, _ELEMENTS // count)
    if test == "randomization":
        return SignificanceResult(test, mean, _sign_flips(differences, rng, batch, resamples), count)
    from scipy.stats import bootstrap

    drawn = bootstrap(
        (differences,), np.mean, n_resamples=resamples, batch=batch, vectorized=True, method="percentile", rng=rng
    )
    interval = float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    return SignificanceResult(test, mean, _level(drawn.bootstrap_distribution), count, interval)


def fisher_z(first: float, first_count: int, second: float, second_count: int) -> tuple[float, float]:
    """(z, two-tailed p) of two correlations, each over so many pairs, as if the pairs were different ones.

    What the Starbucks paper (arXiv 2410.13230, Table 4) tests with. Systems scored on the same pairs agree far more
    than independent ones would, so this misses differences that `compare_correlations` finds. NaN for counts below 4.
    """
    if first_count < 4 or second_count < 4 or not (abs(first) <= 1 and abs(second) <= 1):
        return math.nan, math.nan
    if first == second:
        return 0.0, 1.0
    from scipy.stats import norm

    with np.errstate(divide="ignore"):
        apart = float(np.arctanh(first) - np.arctanh(second))
    z = apart / math.sqrt(1 / (first_count - 3) + 1 / (second_count - 3))
    return z, float(2 * norm.sf(abs(z)))


def williams_t(first: float, second: float, between: float, count: int) -> tuple[float, float]:
    """(t, two-tailed p, count - 3 degrees of freedom) of two correlations with one variable over the same pairs.

    `first` and `second` are the systems' correlations with the gold scores, `between` is the systems' own. Holds for
    Pearson's correlation of normal variables; taken for Spearman's it is an approximation. NaN for counts below 4.
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
    """Test how two systems' scores [pairs] correlate with the gold scores [pairs] of the same pairs, two-tailed.

    Spearman's correlation, or Pearson's. `bootstrap` draws pairs with replacement and ranks anew in each sample: no
    assumption, and some seconds for ten thousand pairs. Raises UserError for unknown tests and unequal lengths.
    """
    from scipy.stats import bootstrap, rankdata

    if test not in ("williams", "bootstrap", "fisher"):
        raise UserError(f"there is no test {test!r}", "take one of williams, bootstrap, fisher")
    columns = [np.asarray(column, dtype=np.float64) for column in (gold, ours, theirs)]
    if len({column.shape for column in columns}) > 1:
        raise UserError(
            f"{', '.join(str(len(column)) for column in columns)} scores cannot be paired", "score the same pairs"
        )
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
        p_value = williams_t(first, second, float(_correlation(ours, theirs)), count)[1]
        return SignificanceResult(test, first - second, p_value, count)
    if np.array_equal(ours, theirs):
        return SignificanceResult(test, 0.0, 1.0, count, (0.0, 0.0))
    drawn = bootstrap(
        columns,
        difference,
        n_resamples=resamples,
        batch=max(1, _ELEMENTS // (4 * count)),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    return SignificanceResult(test, first - second, _level(drawn.bootstrap_distribution), count, interval)


def adjust(p_values: Sequence[float], correction: Correction = "holm") -> list[float]:
    """Correct p-values for being tested as one family; a difference is significant at alpha if its value is below alpha.

    NaN stays NaN and does not count towards the family.

    Args:
        p_values: raw p-values of m tests, in any order.
        correction: `bonferroni` multiplies every p-value by m. `holm` multiplies the smallest by m, the next by m - 1,
            and so on, and lets no value fall below the one before it (Holm 1979): as safe as Bonferroni's correction,
            and it finds more. Both stop at 1. `none` changes nothing.

    Returns:
        The corrected p-values, in the order given.

    Raises:
        UserError: for an unknown correction.

    Example:
        >>> [round(p, 4) for p in adjust([0.04, 0.01, 0.02])]
        [0.04, 0.03, 0.04]
    """
    if correction not in get_args(Correction):
        raise UserError(f"there is no correction {correction!r}", f"take one of {', '.join(get_args(Correction))}")
    adjusted = np.array(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(adjusted))
    if correction == "bonferroni":
        adjusted[tested] = np.minimum(adjusted[tested] * len(tested), 1)
    elif correction == "holm":
        ascending = tested[np.argsort(adjusted[tested], kind="stable")]
        steps = adjusted[ascending] * np.arange(len(tested), 0, -1)
        adjusted[ascending] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted.tolist()


def _paired(
    ours: Mapping[str, float] | ArrayLike, theirs: Mapping[str, float] | ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Both systems' figures [queries], paired."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if ours.keys() != theirs.keys():
            apart = ours.keys() ^ theirs.keys()
            raise UserError(
                f"the figures are not of the same queries: {len(apart)} are of one system only, say {min(apart)!r}",
                "score both under the same judgements",
            )
        theirs = [theirs[query_id] for query_id in ours]
        ours = list(ours.values())
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(
            f"figures of shapes {first.shape} and {second.shape} cannot be paired", "give one figure a query of each"
        )
    return first, second


def _t(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.stats import ttest_rel

    differences = first - second
    # One difference for all has no spread: no t-value, and no doubt either. Rounding leaves some; it is no evidence.
    if np.ptp(differences) <= 1e-12 * np.abs(differences).max():
        return 0.0
    return float(ttest_rel(first, second).pvalue)


def _sign_flips(differences: np.ndarray, rng: np.random.Generator, batch: int, resamples: int) -> float:
    from scipy.stats import permutation_test

    # With one sample, scipy's kind of permutation for paired samples flips the signs of its observations.
    found = permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=resamples,
        batch=batch,
        vectorized=True,
        rng=rng,
    )
    return float(found.pvalue)


def _level(distribution: np.ndarray) -> float:
    """The two-tailed level at which the percentile interval of a bootstrap distribution just reaches zero."""
    below, above = int(np.sum(distribution <= 0)), int(np.sum(distribution >= 0))
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(distribution)))


def _correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's correlation along the last axis."""
    first = first - first.mean(-1, keepdims=True)
    second = second - second.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
