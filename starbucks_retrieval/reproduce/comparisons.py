"""The test of two rows on a set at a size, behind the asterisks of a table as well as the verdicts about its claims.

Queries and seeds are both samples: a difference should hold for other queries and for another training. With several
seeds, the standard error is therefore that of a mean over two crossed random factors (`mean_difference`). A paired t-test
over queries of the means of the seeds would take the trained models for fixed. It answers whether these very models
differ, and calls differences significant that the next training does not confirm.

With one seed, as in the papers, nothing is known about other trainings: the test is the paired t-test over queries, and
that of two correlations Williams' test over the same pairs.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starbucks_retrieval.metrics.equivalence import (
    CorrelationDifference,
    Difference,
    MeanDifference,
    correlation_difference,
    mean_difference,
)
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.metrics.significance import fisher_z, williams_t
from starbucks_retrieval.report.columns import Column
from starbucks_retrieval.report.tables import ALPHA, CellComparison
from starbucks_retrieval.reproduce.results import Key, RowScores, SeedScore
from starbucks_retrieval.reproduce.schema import Table
from starbucks_retrieval.sizes import Size

_CORRELATIONS = ("spearman", "pearson")
_WILLIAMS = "Williams' test of correlations over the same pairs"
_WITHOUT_VALUES = "a figure comes without those of single queries"
_TOO_FEW = "there are too few queries or pairs"
_FISHER = "Fisher's z of correlations taken for independent, as their pairs are not kept"


@dataclass(frozen=True)
class Pair:
    """The scores of two rows on a set at a size.

    Attributes:
        one, other: Their means over the seeds.
        ours, theirs: Those of each seed, as many of both rows.
    """

    one: Cell
    other: Cell
    ours: list[SeedScore]
    theirs: list[SeedScore]

    @property
    def is_correlation(self) -> bool:
        """Whether the scores are correlations over pairs of sentences, not means over queries."""
        return self.one.measure in _CORRELATIONS

    @cached_property
    def difference(self) -> Difference | None:
        """The difference over queries or pairs and seeds; None if the values of queries are missing."""
        ours, theirs = seed_values(self.ours), seed_values(self.theirs)
        if not self.is_correlation:
            return mean_difference(ours, theirs) if ours and theirs else None
        from scipy.stats import pearsonr, spearmanr

        between = None
        if ours and theirs:
            cosines = np.mean(ours, axis=0), np.mean(theirs, axis=0)
            between = float((spearmanr if self.one.measure == "spearman" else pearsonr)(*cosines).statistic)
        mine, other = ([score.value for score in side] for side in (self.ours, self.theirs))
        return correlation_difference(mine, other, self.one.count, between)

    @property
    def test(self) -> str:
        """The name of the test behind the p-value, two-tailed."""
        found = self.difference
        if isinstance(found, CorrelationDifference):
            return _FISHER if found.between is None else _WILLIAMS
        over = "pairs" if self.is_correlation else "queries"
        seeds = found.seeds if isinstance(found, MeanDifference) else 1
        return f"t-test over {over} and {seeds} seeds" if seeds > 1 else f"paired t-test over {over}"

    @property
    def p_value(self) -> float:
        """The two-tailed p-value of no difference; NaN if it cannot be tested."""
        found = self.difference
        if isinstance(found, MeanDifference):
            return found.p_value
        if not isinstance(found, CorrelationDifference):
            return math.nan
        if found.between is None:
            return fisher_z(found.first, found.count, found.second, found.count)[1]
        return williams_t(found.first, found.second, found.between, found.count)[1]


def make_pair(table: Table, one: str, other: str, scores: Mapping[str, RowScores], key: Key) -> Pair:
    """Return the scores of two rows with those of as many seeds of both.

    A row without training is the same for all seeds of the other.

    Args:
        table: The table of the rows.
        one, other: Names of the rows; both have a score under the key.
        scores: The scores by row.
        key: Set, measure and size.
    """
    sides = [scores[name].by_seed.get(key) or [SeedScore.of(scores[name].cells[key])] for name in (one, other)]
    trained = {row.name for row in table.rows if row.train}
    counts = [len(side) for side, name in zip(sides, (one, other)) if name in trained]
    seeds = min(counts, default=1)
    ours, theirs = ((side * seeds)[:seeds] for side in sides)
    return Pair(scores[one].cells[key], scores[other].cells[key], ours, theirs)


@dataclass(frozen=True)
class BaselineTests:
    """The tests of rows against the baseline of a table.

    Attributes:
        found: (column, size) → label of a row → comparison, without a correction for their number, as the papers' are.
        notes: Sentences about them, to stand below the table.
    """

    found: Mapping[tuple[Column, Size], Mapping[str, CellComparison]]
    notes: list[str]


def compare_rows(
    table: Table, scores: Mapping[str, RowScores], columns: Sequence[Column], sizes: Sequence[Size]
) -> BaselineTests:
    """Test the rows of a table against its baseline, score by score.

    Args:
        table: The table.
        scores: The scores by row.
        columns: Its sets and measures.
        sizes: Its sizes.
    """
    found: dict[tuple[Column, Size], dict[str, CellComparison]] = {}
    tests, untested = Counter[str](), Counter[str]()
    for column, size in itertools.product(columns, sizes):
        for row in table.rows:
            # Rows measured with `asymmetric` have the size of the passages too.
            keys: list[Key] = [(column.dataset, column.measure, size, passages) for passages in (None, size)]
            both = [scores[name].cells for name in (row.name, table.baseline) if name in scores]
            key = next((key for key in keys if len(both) == 2 and all(key in cells for cells in both)), None)
            if key is None or row.name == table.baseline or not all(math.isfinite(cells[key].value) for cells in both):
                continue
            pair = make_pair(table, row.name, table.baseline, scores, key)
            difference = pair.difference
            if difference is None or math.isnan(pair.p_value):
                untested[_WITHOUT_VALUES if difference is None else _TOO_FEW] += 1
                continue
            low, high = difference.interval()
            tests[pair.test] += 1
            comparison = CellComparison(
                pair.one.value - pair.other.value, pair.p_value, pair.p_value, pair.test, (low, high)
            )
            found.setdefault((column, size), {})[row.label or row.name] = comparison
    return BaselineTests(found, _notes(table, tests, untested))


def _notes(table: Table, tests: Mapping[str, int], untested: Mapping[str, int]) -> list[str]:
    label = next((row.label or row.name for row in table.rows if row.name == table.baseline), "")
    notes = []
    if tests:
        made = " and ".join(f"{name} ({count} comparisons)" for name, count in tests.items())
        same = ", as for the verdicts about claims, which are corrected" if table.claims else ""
        notes.append(f"* differs from {label} (p < {ALPHA}, two-tailed, not corrected): {made}{same}.")
    notes += [
        f"Not tested, and so without a mark: {count} comparisons, because {why}." for why, count in untested.items()
    ]
    return notes


def seed_values(scores: Sequence[SeedScore]) -> list[np.ndarray]:
    """Return the values of queries or pairs of each seed; nothing if one has none."""
    found = [score.values for score in scores if score.values is not None]
    return found if len(found) == len(scores) else []
