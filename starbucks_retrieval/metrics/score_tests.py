"""The test of two methods' scores on a data set at a size: the same for the marks of tables and the verdicts about claims.

With one seed, as in the papers, nothing is known about other trainings: measures of retrieval are tested by the paired
t-test over queries, correlations by Fisher's z or Williams' test. With several seeds, the test covers other queries, or pairs
of sentences, and other trainings (`starbucks_retrieval.metrics.seeds`). A paired t-test over queries of the means of seeds
would take the trained models for fixed, and call differences significant that the next training does not confirm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from starbucks_retrieval.metrics.equivalence import (
    CorrelationDifference,
    Difference,
    correlation_difference,
    mean_difference,
)
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.metrics.seeds import correlation_values

CorrelationTest = Literal["fisher", "williams"]
PAIRED, FISHER, WILLIAMS = "paired t-test", "Fisher's z", "Williams' test"
SEEDS, PAIR_SEEDS, INDEPENDENT_SEEDS = (
    "t-test over queries and seeds",
    "t-test over pairs and seeds",
    "t-test over independent pairs and seeds",
)
TESTS = {
    PAIRED: "paired t-test over queries",
    FISHER: "Fisher's z, which takes correlations for independent",
    WILLIAMS: "Williams' test of correlations over the same pairs",
    SEEDS: "t-test over queries and seeds",
    PAIR_SEEDS: "t-test over pairs of sentences and seeds",
    INDEPENDENT_SEEDS: "t-test over pairs of sentences and seeds, which takes correlations for independent",
}
_CORRELATIONS = ("spearman", "pearson")


@dataclass(frozen=True)
class SeedScore:
    """A score of one seed.

    Attributes:
        value: The score.
        count: Number of queries or pairs.
        values: Those of its queries, or the cosines of its pairs, in the order of their ids; None without.
        model: The fingerprint of the model, "" if unknown.
    """

    value: float
    count: int
    values: np.ndarray | None = None
    model: str = ""

    @classmethod
    def of(cls, cell: Cell, model: str = "") -> SeedScore:
        """Return the score of a cell."""
        values = np.array([cell.values[key] for key in sorted(cell.values)]) if cell.values else None
        return cls(cell.value, cell.count, values, model)


@dataclass(frozen=True)
class ScoreTest:
    """A test of two scores.

    Attributes:
        name: A key of `TESTS`.
        p: The two-tailed p-value.
        difference: The difference of the scores, with confidence limits.
        williams: The p-value of Williams' test, where it can be made.
        seeds: Number of seeds.
    """

    name: str
    p: float
    difference: Difference
    williams: float | None = None
    seeds: int = 1


def is_correlation(measure: str) -> bool:
    """Return whether a score is a correlation over pairs of sentences, not a mean over queries."""
    return measure.lower() in _CORRELATIONS


def compare_scores(
    measure: str,
    ours: Sequence[SeedScore],
    theirs: Sequence[SeedScore],
    gold: np.ndarray | None = None,
    correlation: CorrelationTest = "williams",
) -> ScoreTest | str:
    """Test the difference of two methods over the same queries or pairs, and over seeds if there are several.

    Args:
        measure: The measure.
        ours, theirs: The scores of each seed, with values in the same order; of a method without training, the same for each.
        gold: The gold scores of the pairs of a correlation in that order [pairs], if they are known.
        correlation: The test of two correlations of one seed each, where the pairs are kept.

    Returns:
        The test, or the reason why it cannot be made.
    """
    numbers = len(ours), len(theirs)
    if numbers[0] != numbers[1] and 1 in numbers:
        return f"one method has {numbers[0]} seeds and the other {numbers[1]}"
    if is_correlation(measure):
        found = _compare_correlations(measure.lower(), ours, theirs, gold, correlation)
    else:
        mine, other = ([score.values for score in side if score.values is not None] for side in (ours, theirs))
        if (len(mine), len(other)) != numbers:
            return "a figure comes without those of single queries"
        spread = mean_difference(mine, other, same_models(ours, theirs))
        found = ScoreTest(SEEDS if spread.seeds > 1 else PAIRED, spread.p_value, spread, seeds=spread.seeds)
    return "there are too few queries or pairs" if math.isnan(found.p) else found


def same_models(ours: Sequence[SeedScore], theirs: Sequence[SeedScore]) -> bool:
    """Return whether two methods are known to be measured on the same trained models."""
    models = [[score.model for score in side] for side in (ours, theirs)]
    return all(models[0]) and models[0] == models[1]


def _compare_correlations(
    measure: str,
    ours: Sequence[SeedScore],
    theirs: Sequence[SeedScore],
    gold: np.ndarray | None,
    correlation: CorrelationTest,
) -> ScoreTest:
    scores, pearson = [*ours, *theirs], measure == "pearson"
    seeds, count = min(len(ours), len(theirs)), min(score.count for score in scores)
    kept = [score.values for score in scores if score.values is not None and np.ptp(score.values) > 0]
    if len(kept) < len(scores) or (seeds > 1 and gold is None):
        difference = correlation_difference([one.value for one in ours], [one.value for one in theirs], count)
        return ScoreTest(INDEPENDENT_SEEDS if seeds > 1 else FISHER, difference.p_value, difference, seeds=seeds)
    if seeds > 1:
        values = [correlation_values(gold, cosines, pearson=pearson) for cosines in kept]  # type: ignore[arg-type]
        spread = mean_difference(values[: len(ours)], values[len(ours) :], same_models(ours, theirs))
        return ScoreTest(PAIR_SEEDS, spread.p_value, spread, seeds=seeds)
    from scipy.stats import pearsonr, spearmanr

    between = float((pearsonr if pearson else spearmanr)(*kept).statistic)
    independent = CorrelationDifference(ours[0].value, theirs[0].value, count)
    dependent = replace(independent, between=between)
    name, p = (WILLIAMS, dependent.p_value) if correlation == "williams" else (FISHER, independent.p_value)
    return ScoreTest(name, p, dependent, dependent.p_value)
