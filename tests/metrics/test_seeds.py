"""The test over queries and seeds: its error rates in simulations, and the influence of pairs on a correlation."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import slow_except
from scipy.stats import pearsonr, rankdata, spearmanr

from starbucks_retrieval.metrics.equivalence import mean_difference
from starbucks_retrieval.metrics.score_tests import SeedScore, compare_scores
from starbucks_retrieval.metrics.seeds import correlation_values

TRUTH = 0.03


def trained(rng, of_seeds, interaction, queries=100, seeds=3):
    """Scores of a method [seeds, queries] without the effects of queries."""
    return rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, interaction, (seeds, queries))


@pytest.mark.parametrize(
    ("of_seeds", "of_queries", "interaction"),
    [
        (0.05, 0.1, 0.1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((0.02, 0.1, 0.1), (0.05, 0.3, 0.1), (0.1, 0.1, 0.3))
        ),
    ],
)
def test_three_seeds_find_differences_that_are_not_there_about_as_often_as_they_should(
    of_seeds, of_queries, interaction
):
    rng = np.random.default_rng(1)
    number, wrong, outside, of_means = 600, 0, 0, 0
    for _ in range(number):
        ours, theirs = (trained(rng, of_seeds, interaction) + rng.normal(0, of_queries / 2**0.5, 100) for _ in range(2))
        found = mean_difference(list(ours), list(theirs))
        wrong += found.p_value < 0.05
        low, high = mean_difference(list(ours + TRUTH), list(theirs)).interval()
        outside += not low < TRUTH < high
        of_means += mean_difference(ours.mean(0), theirs.mean(0)).p_value < 0.05
    assert 0.02 <= wrong / number <= 0.08
    assert 0.02 <= outside / number <= 0.08
    assert of_means / number > 0.085  # over queries alone


@pytest.mark.parametrize("same_models", [False, True])
def test_one_side_with_seeds_has_two_degrees_of_freedom_and_at_most_eight_percent_of_errors(same_models):
    rng = np.random.default_rng(2)
    number, wrong = 600, 0
    for _ in range(number):
        ours = trained(rng, 0.05, 0.1) + rng.normal(0, 0.1, 100)
        theirs = trained(rng, 0.2, 0.1) if same_models else np.zeros((3, 100))  # what both share is not between them
        wrong += mean_difference(list(ours + theirs * same_models), list(theirs), same_models).p_value < 0.05
    assert 0.03 <= wrong / number <= 0.09  # 0.076 expected


@pytest.mark.parametrize("measure", slow_except(["pearson"], ["spearman", "pearson"]))
def test_correlations_of_three_seeds_differ_about_as_often_as_they_should(measure):
    rng = np.random.default_rng(3)
    ranks = {"spearman": rankdata, "pearson": np.asarray}[measure]
    number, wrong, outside, of_one = 300, 0, 0, 0
    for _ in range(number):
        gold, shared = rng.normal(size=(2, 100))
        sides = []
        for _ in range(2):
            own = shared * 0.5 + rng.normal(0, 0.4, 100)
            runs = [gold * rng.lognormal(0, 0.2) + own + rng.normal(0, 0.3, 100) for _ in range(3)]
            sides.append([SeedScore(float(np.corrcoef(ranks(gold), ranks(run))[0, 1]), 100, run) for run in runs])
        found = compare_scores(measure, *sides, gold)
        wrong += found.p < 0.05
        low, high = found.difference.interval()
        outside += not low < 0 < high
        of_one += compare_scores(measure, sides[0][:1], sides[1][:1], gold).p < 0.05
    assert 0.02 <= wrong / number <= 0.08 and wrong == outside
    assert of_one / number > 0.2  # Williams' test of one seed each is about these two models


def test_the_order_of_seeds_does_not_matter_unless_the_models_are_the_same():
    ours, theirs = np.random.default_rng(4).random((2, 3, 20))
    found, turned = mean_difference(list(ours), list(theirs)), mean_difference(list(ours), list(theirs[::-1]))
    assert (found.error, found.freedom) == pytest.approx((turned.error, turned.freedom))
    crossed = mean_difference(list(ours), list(theirs), same_models=True)
    alone = mean_difference(list(ours - theirs), [np.zeros(20)] * 3)
    assert (crossed.error, crossed.freedom) == pytest.approx((alone.error, alone.freedom))


def test_the_error_of_two_methods_is_that_of_their_components():
    rng = np.random.default_rng(5)
    ours, theirs = (rng.random((seeds, 20)) + rng.random((seeds, 1)) + rng.random(20) for seeds in (3, 2))
    parts = [(np.var(ours.mean(0) - theirs.mean(0), ddof=1) / 20, 19)]
    for runs in (ours, theirs):
        rest = runs - runs.mean(1, keepdims=True) - runs.mean(0) + runs.mean()
        parts.append((np.var(runs.mean(1), ddof=1) / len(runs), len(runs) - 1))
        parts.append((-(rest**2).sum() / (len(runs) - 1) / 19 / runs.size, (len(runs) - 1) * 19))
    square = sum(part for part, _ in parts)
    found = mean_difference(list(ours), list(theirs))
    assert found.error**2 == pytest.approx(square) and found.seeds == 2
    assert found.freedom == pytest.approx(square**2 / sum(part**2 / freedom for part, freedom in parts))


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_the_influence_of_a_pair_is_the_derivative_by_its_weight(measure):
    rng = np.random.default_rng(6)
    gold = rng.integers(0, 6, 40).astype(float)  # with ties, as human scores
    cosines = np.round(gold + rng.normal(0, 2, 40), 1)
    correlate = {"spearman": spearmanr, "pearson": pearsonr}[measure]
    whole = correlate(gold, cosines).statistic
    values = correlation_values(gold, cosines, pearson=measure == "pearson")
    assert values.mean() == pytest.approx(whole)
    copies = 4000  # one more copy of a pair is a small change of its weight
    for pair in (0, 7, 23):
        more = [np.append(np.repeat(column, copies), column[pair]) for column in (gold, cosines)]
        slope = (correlate(*more).statistic - whole) * copies * 40
        assert values[pair] - whole == pytest.approx(slope, abs=1e-3)


def test_a_mark_needs_the_values_of_queries_and_as_many_runs():
    ours = [SeedScore(0.5, 3, np.array([0.25, 0.5, 0.75]))] * 3
    assert compare_scores("RR@10", ours, ours[:1]) == "one method has 3 seeds and the other 1"
    assert "without those of single queries" in compare_scores("RR@10", ours, [SeedScore(0.5, 3)] * 3)
    one = [SeedScore(0.5, 1, np.array([0.5]))]
    assert "too few" in compare_scores("RR@10", one, one)
