"""Confidence intervals of differences, and two one-sided tests, by other routes than the package takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm, t, ttest_1samp, ttest_rel

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.equivalence import (
    CorrelationDifference,
    Equivalence,
    adjust_equivalence,
    correlation_difference,
    mean_difference,
    verdict,
)


def test_two_one_sided_t_tests_are_scipys():
    rng = np.random.default_rng(1)
    ours = rng.random(40)
    theirs = ours + rng.normal(0.005, 0.05, 40)
    found, differences = mean_difference(ours, theirs), ours - theirs
    above = ttest_1samp(differences, -0.02, alternative="greater").pvalue
    below = ttest_1samp(differences, 0.02, alternative="less").pvalue
    assert found.equivalence(0.02) == pytest.approx((above, max(above, below)))
    assert found.p_value == pytest.approx(ttest_rel(ours, theirs).pvalue)
    low, high = ttest_1samp(differences, 0).confidence_interval(0.9)
    assert found.interval(0.9) == pytest.approx((low, high))
    # Equivalence at 5 % says that the interval of 90 % lies within the margin.
    for margin in (0.01, 0.015, 0.02, 0.03):
        assert (found.equivalence(margin).equivalent < 0.05) == (-margin < low and high < margin)


def test_values_by_query_id_are_paired():
    ours, theirs = {"a": 1.0, "b": 0.5, "c": 0.25}, {"c": 0.25, "a": 0.75, "b": 0.5}
    assert mean_difference(ours, theirs).value == pytest.approx(0.25 / 3)
    with pytest.raises(UserError, match="not of the same queries"):
        mean_difference(ours, {"a": 1.0})


def test_the_variance_over_seeds_and_queries_is_that_of_a_two_way_analysis():
    """Sums of squares as residuals of least squares, and Satterthwaite's degrees of freedom."""
    rng = np.random.default_rng(3)
    seeds, queries = 3, 8
    ours = rng.normal(0, 0.05, (seeds, 1)) + rng.normal(0, 0.1, queries) + rng.normal(0, 0.02, (seeds, queries))
    found = mean_difference(list(ours), list(np.zeros((seeds, queries))))
    rows, columns = (kind.ravel() for kind in np.indices(ours.shape))
    ones, by_row, by_column = np.ones((ours.size, 1)), np.eye(seeds)[rows], np.eye(queries)[columns]

    def residual(*parts):
        design = np.hstack(parts)
        return float(((ours.ravel() - design @ np.linalg.lstsq(design, ours.ravel(), rcond=None)[0]) ** 2).sum())

    both = residual(ones, by_row, by_column)
    of_seeds = (residual(ones, by_column) - both) / (seeds - 1)
    of_queries = (residual(ones, by_row) - both) / (queries - 1)
    rest = both / ((seeds - 1) * (queries - 1))
    square = of_seeds + of_queries - rest
    degrees = square**2 / (of_seeds**2 / 2 + of_queries**2 / 7 + rest**2 / 14)
    assert square > max(of_seeds, of_queries)
    assert found.error == pytest.approx(math.sqrt(square / ours.size))
    assert found.freedom == pytest.approx(degrees)
    assert found.interval()[1] == pytest.approx(ours.mean() + t.isf(0.025, degrees) * math.sqrt(square / ours.size))


def test_zous_interval_of_dependent_correlations():
    # The example of Zou (2007) for overlapping correlations, as the R package cocor prints it.
    found = CorrelationDifference(0.396, 0.179, 66, 0.088)
    assert [round(limit, 3) for limit in found.interval()] == [-0.093, 0.517]
    assert found.value == pytest.approx(0.217)
    independent = CorrelationDifference(0.396, 0.179, 66).interval()
    assert independent[0] < -0.093 and independent[1] > 0.517


def test_the_p_value_of_equal_correlations_is_the_level_of_the_limit():
    ours, theirs, between, count, margin = 0.82, 0.815, 0.97, 1379, 0.01

    def upper(alpha):
        z = norm.isf(alpha) / math.sqrt(count - 3)
        high, low = math.tanh(math.atanh(ours) + z) - ours, theirs - math.tanh(math.atanh(theirs) - z)
        numerator = (between - ours * theirs / 2) * (1 - ours**2 - theirs**2 - between**2) + between**3
        shared = numerator / (1 - ours**2) / (1 - theirs**2)
        return ours - theirs + math.sqrt(high**2 + low**2 - 2 * shared * high * low)

    expected = brentq(lambda alpha: upper(alpha) - margin, 1e-12, 0.5, xtol=1e-14)
    found = CorrelationDifference(ours, theirs, count, between).equivalence(margin)
    assert found.equivalent == pytest.approx(expected, rel=1e-6) and expected < 0.2
    assert found.non_inferior < found.equivalent
    assert CorrelationDifference(ours, theirs, count).equivalence(margin).equivalent > found.equivalent


def test_interval_of_correlations_holds_the_truth():
    inside = 0
    for number in range(200):
        rng = np.random.default_rng(number)
        gold = rng.normal(size=100)
        shared = rng.normal(size=100)
        ours, theirs = (gold + shared + rng.normal(0, 0.5, 100) for _ in range(2))
        r = np.corrcoef([gold, ours, theirs])
        low, high = CorrelationDifference(r[0, 1], r[0, 2], 100, r[1, 2]).interval()
        inside += low < 0 < high
    assert 180 <= inside <= 198  # 190 expected


def test_nothing_differs_or_nothing_can_be_said():
    same = mean_difference([0.5, 0.25], [0.5, 0.25])
    assert same.p_value == 1.0 and same.interval() == (0.0, 0.0) and same.equivalence(0.01) == (0.0, 0.0)
    shifted = mean_difference([0.75, 0.5], [0.5, 0.25])
    assert shifted.p_value == 0.0 and shifted.equivalence(0.01) == (0.0, 1.0)
    for unknown in (mean_difference([1.0], [0.5]), mean_difference([1.0, math.nan], [0.5, 0.5])):
        assert all(map(math.isnan, (unknown.value, *unknown.interval(), *unknown.equivalence(0.1))))
    for few in (CorrelationDifference(0.5, 0.4, 3, 0.9), CorrelationDifference(1.0, 0.4, 30, 0.9)):
        assert all(map(math.isnan, few.equivalence(0.1)))


def test_equal_seeds_are_no_evidence_beyond_one():
    rng = np.random.default_rng(0)
    ours, theirs = rng.random((2, 30))
    one, three = mean_difference(ours, theirs), mean_difference([ours] * 3, [theirs] * 3)
    assert (three.value, three.error, three.freedom) == pytest.approx((one.value, one.error, one.freedom))


def test_each_kind_is_corrected_over_its_own_family():
    found = [Equivalence(0.01, 0.03), Equivalence(0.02, 0.04), Equivalence(math.nan, math.nan)]
    by_hand = [(0.02, 0.06), (0.02, 0.06)]  # Holm over two
    assert [tuple(one) for one in adjust_equivalence(found, "holm")[:2]] == [pytest.approx(row) for row in by_hand]
    assert verdict(Equivalence(math.nan, math.nan)) == "open"


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_a_margin_is_positive(margin):
    with pytest.raises(UserError, match="leaves no room"):
        mean_difference([1.0, 2.0], [1.0, 2.0]).equivalence(margin)


def test_seeds_have_to_match():
    with pytest.raises(UserError, match="1 and 3 seeds"):
        mean_difference([[1.0, 2.0]], [[1.0, 2.0]] * 3)
    with pytest.raises(UserError, match="2 and 3 seeds"):
        mean_difference([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 3, same_models=True)
    with pytest.raises(UserError, match="1 and 3 seeds"):
        correlation_difference([0.5], [0.5] * 3, 100)
    with pytest.raises(UserError, match="cannot be paired"):
        mean_difference([[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]])
