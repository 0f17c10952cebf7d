"""Tests of significance, against closed forms, published decisions, and how often they err where nothing differs."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from conftest import slow_except
from hypothesis import given
from hypothesis import strategies as st

from starbucks_retrieval import UserError
from starbucks_retrieval.metrics.significance import (
    adjust,
    compare_correlations,
    fisher_z,
    paired_test,
    williams_t,
)

TESTS = ["t", "randomization", "bootstrap"]
CORRELATIONS = ["williams", "bootstrap", "fisher"]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def figures(count: int, shift: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    easy = rng.normal(size=count)  # queries are easy or hard for both systems
    return easy + 0.3 * rng.normal(size=count) + shift, easy + 0.3 * rng.normal(size=count)


def test_the_paired_t_test_of_the_golden_vectors(shared):
    golden = json.loads((shared / "golden" / "golden.json").read_text())["stats"]
    outcome = paired_test(golden["x"], golden["y"])
    assert outcome.p_value == pytest.approx(golden["paired_t"]["p"], abs=1e-12)
    assert outcome.count == golden["paired_t"]["df"] + 1
    fisher = golden["fisher_z"]
    z, p_value = fisher_z(fisher["r1"], fisher["n1"], fisher["r2"], fisher["n2"])
    assert (z, p_value) == (pytest.approx(fisher["z"], abs=1e-12), pytest.approx(fisher["p"], abs=1e-12))


def test_a_t_test_by_hand():
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt 3, t = 2 sqrt 3 with two degrees of freedom.
    t = 2 * math.sqrt(3)
    by_hand = 1 - t / math.sqrt(t**2 + 2)
    outcome = paired_test([2, 4, 6], [1, 2, 3])
    assert (outcome.difference, outcome.count) == (2, 3)
    assert outcome.p_value == pytest.approx(by_hand)


def test_the_randomisation_test_is_exact_for_few_queries():
    # All of n signs alike: 2 of 2^n ways are as extreme.
    for count in (2, 5, 13):
        ours = np.arange(1, count + 1)
        assert paired_test(ours, np.zeros(count), "randomization").p_value == pytest.approx(2 / 2**count)
    # Of the ways to sign 1, 2, 3, 4 a sum of 8 or more, or -8 or less, is had by 4 of 16.
    assert paired_test([-1, 2, 3, 4], [0] * 4, "randomization").p_value == pytest.approx(4 / 16)


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_resampling_agrees_with_t_where_t_is_right_and_repeats_by_seed(test):
    ours, theirs = figures(200, 0.05)
    exact = paired_test(ours, theirs).p_value
    first, again, other = (paired_test(ours, theirs, test, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.p_value != other.p_value
    assert first.p_value == pytest.approx(exact, abs=0.02)
    assert 0.02 < exact < 0.5


def test_the_bootstrap_interval_holds_the_difference_and_matches_the_level():
    ours, theirs = figures(300, 0.1)
    outcome = paired_test(ours, theirs, "bootstrap")
    low, high = outcome.interval
    assert low < outcome.difference < high
    assert (low > 0) == (outcome.p_value < 0.05)
    assert high - low == pytest.approx(2 * 1.96 * np.std(ours - theirs) / math.sqrt(300), rel=0.1)


@pytest.mark.parametrize("test", slow_except(["t", "bootstrap"], TESTS))
def test_where_nothing_differs_one_in_twenty_is_significant(test):
    below = sum(paired_test(*figures(40, 0.0, seed), test, resamples=399).p_value < 0.05 for seed in range(300))
    assert 5 <= below <= 30  # 15 expected


@pytest.mark.parametrize("test", TESTS)
def test_identical_figures_are_no_difference(test):
    outcome = paired_test([0.5, 0.2, 1.0], [0.5, 0.2, 1.0], test)
    assert (outcome.p_value, outcome.difference) == (1.0, 0.0)


@pytest.mark.parametrize("test", TESTS)
def test_what_cannot_be_tested_has_no_p_value(test):
    for ours, theirs in (([1.0], [0.0]), ([], []), ([1.0, math.nan, 0.5], [0.0, 0.0, 0.0])):
        assert math.isnan(paired_test(ours, theirs, test).p_value)


def test_one_difference_for_all_leaves_no_doubt():
    # 0.1 apart each, but for rounding.
    assert paired_test(np.arange(20) / 7 + 0.1, np.arange(20) / 7).p_value == 0.0


def test_figures_are_paired_by_query():
    ours, theirs = {"a": 1.0, "b": 0.2, "c": 0.1}, {"c": 0.0, "b": 0.3, "a": 0.5}
    assert paired_test(ours, theirs) == paired_test([1.0, 0.2, 0.1], [0.5, 0.3, 0.0])
    with pytest.raises(UserError, match=r"2 are of one system only, e\.g\. 'c'"):
        paired_test(ours, {"a": 1.0, "b": 0.2, "d": 0.1})
    with pytest.raises(UserError, match=r"\(3,\) and \(2,\)"):
        paired_test([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match="unknown test 'wilcoxon'"):
        paired_test(ours, theirs, "wilcoxon")


# ---------------------------------------------------------------- corrections


def test_holm_and_bonferroni_by_hand():
    p_values = [0.04, 0.01, math.nan, 0.02]
    assert adjust(p_values, "bonferroni") == pytest.approx([0.12, 0.03, math.nan, 0.06], nan_ok=True)
    # Holm: 3 x 0.01, then 2 x 0.02, then 0.04, never falling.
    assert adjust(p_values, "holm") == pytest.approx([0.04, 0.03, math.nan, 0.04], nan_ok=True)
    assert adjust(p_values, "none") == pytest.approx(p_values, nan_ok=True)
    assert adjust([], "holm") == []
    assert adjust([0.5, 0.9], "bonferroni") == [1.0, 1.0]
    with pytest.raises(UserError, match="unknown correction 'fdr'"):
        adjust(p_values, "fdr")


def test_holm_by_hand_in_a_bigger_family():
    # Sorted: 0.001, 0.008, 0.008, 0.039, 0.041, 0.6; times 6, 5, 4, 3, 2, 1; never falling.
    p_values = [0.6, 0.008, 0.041, 0.001, 0.039, 0.008]
    assert adjust(p_values, "holm") == pytest.approx([0.6, 0.04, 0.117, 0.006, 0.117, 0.04])
    assert adjust([0.0, 1.0, 0.9], "holm") == [0.0, 1.0, 1.0]
    assert adjust([0.03], "holm") == adjust([0.03], "bonferroni") == [0.03]


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=30))
def test_corrections_never_favour_a_difference_and_keep_the_order(p_values):
    tested = [i for i, p_value in enumerate(p_values) if not math.isnan(p_value)]
    holm, bonferroni = adjust(p_values, "holm"), adjust(p_values, "bonferroni")
    assert [i for i, p_value in enumerate(holm) if not math.isnan(p_value)] == tested
    for i in tested:
        assert p_values[i] <= holm[i] <= bonferroni[i] <= 1
        assert all(holm[i] <= holm[j] for j in tested if p_values[i] <= p_values[j])
    order = tested[::-1]
    assert adjust([p_values[i] for i in order], "holm") == [holm[i] for i in order]


# ---------------------------------------------------------------- correlations

PAIRS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 9927}


def test_fisher_z_decides_as_the_168_asterisks_of_the_published_table(shared):
    published = json.loads((shared / "reference_results.json").read_text())["starbucks"]
    table, marked = published["table4"], published["table4_significant_vs_starbucks_p<0.05"]
    ours, decisions = table["SMAE-SRL (Starbucks)"], 0
    for method in table.keys() - {"SMAE-SRL (Starbucks)"}:
        for size, row in table[method].items():
            for name, count in PAIRS.items():
                p_value = fisher_z(ours[size][name], count, row[name], count)[1]
                assert (p_value < 0.05) == (name in marked[method][size]), (method, size, name, p_value)
                decisions += 1
    assert decisions == 168


def test_fisher_z_at_the_edges():
    assert fisher_z(0.5, 100, 0.5, 100) == (0.0, 1.0)
    assert fisher_z(1.0, 100, 0.5, 100) == (math.inf, 0.0)
    assert fisher_z(-1.0, 100, 0.5, 100) == (-math.inf, 0.0)
    for arguments in ((0.5, 3, 0.4, 100), (0.5, 100, 0.4, 3), (math.nan, 100, 0.4, 100), (1.5, 100, 0.4, 100)):
        assert all(math.isnan(value) for value in fisher_z(*arguments))


def test_williams_by_hand():
    # Steiger's T2 with r12 = 0.5, r13 = 0.3, r23 = 0.4, n = 103: |R| = 1 - .25 - .09 - .16 + .12 = 0.62.
    expected = 0.2 * math.sqrt(102 * 1.4 / (2 * 102 / 100 * 0.62 + 0.4**2 * 0.6**3))
    t, p_value = williams_t(0.5, 0.3, 0.4, 103)
    assert t == pytest.approx(expected)
    assert 0.03 < p_value < 0.05
    # The example of R's psych::r.test, which prints -0.89 and 0.37.
    t, p_value = williams_t(0.4, 0.5, 0.1, 103)
    assert (round(t, 2), round(p_value, 2)) == (-0.89, 0.37)
    assert williams_t(0.3, 0.5, 0.4, 103)[0] == pytest.approx(-expected)
    assert williams_t(0.5, 0.5, 0.4, 103) == (0.0, 1.0)
    assert math.isnan(williams_t(0.5, 0.3, 0.4, 3)[1])
    assert math.isnan(williams_t(math.nan, 0.3, 0.4, 103)[1])


def similarities(count: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gold scores and those of two systems that err much alike, the second one more."""
    rng = np.random.default_rng(seed)
    gold, shared_error = rng.normal(size=count), rng.normal(size=count)
    ours = gold + 0.5 * shared_error + 0.1 * rng.normal(size=count)
    return gold, ours, ours + noise * rng.normal(size=count)


@pytest.mark.parametrize("pearson", [False, True])
def test_paired_tests_see_what_the_independent_one_misses(pearson):
    columns = similarities(400, 0.15)
    fisher, williams, bootstrap = (
        compare_correlations(*columns, test, pearson=pearson) for test in ("fisher", "williams", "bootstrap")
    )
    assert fisher.difference == williams.difference == bootstrap.difference > 0
    assert fisher.p_value > 0.2
    assert williams.p_value < 0.01
    assert bootstrap.p_value < 0.02
    low, high = bootstrap.interval
    assert 0 < low < bootstrap.difference < high


def test_correlations_are_scipys():
    from scipy.stats import pearsonr, spearmanr

    gold, ours, theirs = similarities(50, 0.5)
    gold = np.round(gold)  # ties
    outcome = compare_correlations(gold, ours, theirs)
    assert outcome.difference == pytest.approx(spearmanr(gold, ours)[0] - spearmanr(gold, theirs)[0])
    assert outcome.p_value == pytest.approx(
        williams_t(spearmanr(gold, ours)[0], spearmanr(gold, theirs)[0], spearmanr(ours, theirs)[0], 50)[1]
    )
    outcome = compare_correlations(gold, ours, theirs, "fisher", pearson=True)
    expected = fisher_z(pearsonr(gold, ours)[0], 50, pearsonr(gold, theirs)[0], 50)[1]
    assert outcome.p_value == pytest.approx(expected)


@pytest.mark.parametrize("test", slow_except(["williams"], ["williams", "bootstrap"]))
def test_paired_tests_of_equally_good_systems_err_as_often_as_they_say(test):
    below = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        gold = rng.normal(size=80)
        ours, theirs = (gold + 0.7 * rng.normal(size=80) for _ in range(2))
        below += compare_correlations(gold, ours, theirs, test, pearson=True, resamples=299).p_value < 0.05
    assert 2 <= below <= 22  # 10 expected


@pytest.mark.parametrize("test", CORRELATIONS)
def test_correlations_that_are_alike_or_absent(test):
    gold, ours, _ = similarities(30, 0.1)
    assert compare_correlations(gold, ours, ours, test).p_value == 1.0
    assert compare_correlations(gold, ours, 3 * ours + 1, test).p_value == 1.0  # the same order
    for bad in (np.full(30, 0.5), np.where(np.arange(30) == 4, math.nan, ours)):
        outcome = compare_correlations(gold, ours, bad, test)
        assert math.isnan(outcome.p_value) and math.isnan(outcome.difference)
    assert math.isnan(compare_correlations(gold[:3], ours[:3], ours[:3], test).p_value)
    with pytest.raises(UserError, match="30, 29, 30 scores cannot be paired"):
        compare_correlations(gold, ours[:29], ours, test)
    with pytest.raises(UserError, match="unknown test 'z'"):
        compare_correlations(gold, ours, ours, "z")
