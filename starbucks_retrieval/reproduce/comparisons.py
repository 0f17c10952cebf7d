"""The tests of two rows on a set at a size, behind the asterisks of a table as well as the verdicts about its claims.

`starbucks_retrieval.metrics.score_tests` makes them, as on the page of `report`: over queries, or pairs of sentences, and seeds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.metrics.score_tests import TESTS, ScoreTest, SeedScore, compare_scores, is_correlation
from starbucks_retrieval.report.columns import Column
from starbucks_retrieval.report.tables import ALPHA, CellComparison
from starbucks_retrieval.reproduce.results import Key, RowScores
from starbucks_retrieval.reproduce.schema import Table
from starbucks_retrieval.sizes import Size


@dataclass(frozen=True)
class Pair:
    """The scores of two rows on a set at a size.

    Attributes:
        one, other: Their means over the seeds.
        ours, theirs: Those of each seed.
        gold: The gold scores of pairs of sentences, by id; empty if they are unknown.
    """

    one: Cell
    other: Cell
    ours: list[SeedScore]
    theirs: list[SeedScore]
    gold: Mapping[str, float]

    @property
    def is_correlation(self) -> bool:
        """Whether the scores are correlations over pairs of sentences, not means over queries."""
        return is_correlation(self.one.measure)

    @cached_property
    def test(self) -> ScoreTest | str:
        """The test of the difference, or the reason why it cannot be made."""
        known = self.gold and self.one.values and self.gold.keys() == self.one.values.keys()
        gold = np.array([self.gold[name] for name in sorted(self.gold)]) if known else None
        return compare_scores(self.one.measure, self.ours, self.theirs, gold)

    @property
    def p_value(self) -> float:
        """The two-tailed p-value of no difference; NaN if it cannot be tested."""
        return math.nan if isinstance(self.test, str) else self.test.p


def make_pair(table: Table, one: str, other: str, scores: Mapping[str, RowScores], key: Key) -> Pair:
    """Return the scores of two rows with those of their seeds.

    A row without training is the same for all seeds of the other.

    Args:
        table: The table of the rows.
        one, other: Names of the rows; both have a score under the key.
        scores: The scores by row.
        key: Set, measure and size.
    """
    sides = [scores[name].by_seed.get(key) or [SeedScore.of(scores[name].cells[key])] for name in (one, other)]
    trained = {row.name for row in table.rows if row.train}
    for number, name in enumerate((one, other)):
        if name not in trained:
            sides[number] = sides[number][:1] * len(sides[1 - number])
    ours, theirs = sides
    return Pair(scores[one].cells[key], scores[other].cells[key], ours, theirs, scores[one].gold.get(key[0], {}))


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
            if isinstance(test := pair.test, str):
                untested[test] += 1
                continue
            tests[TESTS[test.name]] += 1
            comparison = CellComparison(test.difference.value, test.p, test.p, test.name, test.difference.interval())
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
