"""Tests of methods against a baseline, cell by cell, and the table of differences with their intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from starbucks_retrieval.metrics import significance
from starbucks_retrieval.metrics.equivalence import adjust_equivalence
from starbucks_retrieval.metrics.score_tests import (
    FISHER,
    INDEPENDENT_SEEDS,
    TESTS,
    CorrelationTest,
    ScoreTest,
    SeedScore,
    compare_scores,
    is_correlation,
)
from starbucks_retrieval.report.columns import Column, MethodResults, ReportSizes, group_columns, measure_name
from starbucks_retrieval.report.tables import ALPHA, Block, CellComparison, Heading, Table, TableCell, TableRow
from starbucks_retrieval.sizes import Size

Family = Literal["size", "table"]
CORRECTIONS = {"none": "no correction", "holm": "Holm's correction", "bonferroni": "Bonferroni's correction"}
Tests = dict[tuple[Column, Size | None], dict[str, CellComparison]]


class SignificanceMarks:
    """Tests methods against a baseline, cell by cell, and counts the tests.

    Args:
        baseline: The method that the others are compared with; None tests nothing.
        correction: The correction for several comparisons.
        family: What it covers: the methods on one data set at one size, or all comparisons of the table.
        margin: The largest difference that does not matter, for tests of equivalence; None makes none.
        correlation: The test whose p-value marks correlations; Williams' where both methods keep their pairs.
    """

    def __init__(
        self,
        baseline: MethodResults | None,
        correction: significance.Correction,
        family: Family = "size",
        margin: float | None = None,
        correlation: CorrelationTest = "fisher",
    ) -> None:
        self.baseline = baseline
        self.correction: significance.Correction = correction
        self.family: Family = family
        self.margin = margin
        self.correlation = correlation
        self.tests: Counter[str] = Counter()
        self.untested: Counter[str] = Counter()
        self.seeds = 1
        self.found: Tests = {}

    def compare(
        self, methods: Sequence[MethodResults], columns: Sequence[Column], sizes: Iterable[Size | None]
    ) -> Tests:
        """Test the methods against the baseline, and keep the tests in `found`.

        Tests that cannot be made are counted.

        Args:
            methods: The methods.
            columns: The columns.
            sizes: The sizes; None is the size of scores without one.

        Returns:
            (column, size) → label of a method → comparison.
        """
        found: dict[tuple[Column, Size | None], dict[str, ScoreTest]] = {}
        for size in sizes:
            for column in columns:
                found[column, size] = dict(self._outcomes(methods, column, size))
        families = [[key] for key in found] if self.family == "size" else [list(found)]
        tests = self.found = {key: dict[str, CellComparison]() for key in found}
        for family in families:
            members = [(key, label, one) for key in family for label, one in found[key].items()]
            adjusted = significance.adjust([one.p for _, _, one in members], self.correction)
            equals = None
            if self.margin is not None:
                equals = adjust_equivalence(
                    [one.difference.equivalence(self.margin) for *_, one in members], self.correction
                )
            for number, (key, label, one) in enumerate(members):
                interval = one.difference.interval()
                shown = one.difference.value, one.p, adjusted[number], one.name
                equal = equals[number] if equals else None
                known = interval if all(map(math.isfinite, interval)) else None
                tests[key][label] = CellComparison(*shown, known, equal, one.williams)
        return tests

    def _outcomes(
        self, methods: Sequence[MethodResults], column: Column, size: Size | None
    ) -> Iterable[tuple[str, ScoreTest]]:
        if self.baseline is None or self.baseline.cell(column, size) is None:
            return
        for method in methods:
            if method.cell(column, size) is None or method is self.baseline:
                continue
            outcome = _test(method, self.baseline, column, size, self.correlation)
            if isinstance(outcome, str):
                self.untested[outcome] += 1
                continue
            self.tests[outcome.name] += 1
            self.seeds = max(self.seeds, outcome.seeds)
            yield method.label, outcome

    def notes(self) -> list[str]:
        """Return sentences about the tests, to stand below a table."""
        if self.baseline is None:
            return ["No baseline was named (--baseline), so nothing was tested for significance."]
        notes = []
        if self.tests:
            made = [f"{text} ({self.tests[name]} comparisons)" for name, text in TESTS.items() if self.tests[name]]
            over = {
                "size": " over the methods compared on one data set at one size.",
                "table": f" over all {sum(self.tests.values())} comparisons of the table.",
            }[self.family]
            notes.append(
                f"* differs from {self.baseline.label} (p < {ALPHA}, two-tailed): {' and '.join(made)}; {CORRECTIONS[self.correction]}"
                + (over if self.correction != "none" else ".")
            )
            if self.margin is not None:
                notes.append(
                    f"= is equivalent to {self.baseline.label} within ±{self.margin:g}, ≥ is not inferior by {self.margin:g} or "
                    f"more (one-sided tests, p < {ALPHA}, corrected in the same way). No sign of these two: undecided."
                )
            if self.seeds > 1:
                notes.append(
                    f"Figures are means over up to {self.seeds} seeds; tests and intervals cover other queries and other seeds."
                )
            if self.tests[FISHER] or self.tests[INDEPENDENT_SEEDS]:
                notes.append(
                    "Both methods scored the same pairs, so a test that takes their correlations for independent finds fewer "
                    "differences than one for dependent correlations would, which needs all pairs (sts --keep_pairs true)."
                )
        for reason, count in self.untested.items():
            notes.append(f"Not tested, and so without a mark: {count} comparisons, because {reason}.")
        return notes


def _test(
    method: MethodResults, baseline: MethodResults, column: Column, size: Size | None, correlation: CorrelationTest
) -> ScoreTest | str:
    """Return the test, or why it cannot be made."""
    runs = [one.runs(column, size) for one in (method, baseline)]
    ids = {frozenset(cell.values) for cells in runs for cell in cells if cell.values}
    if len(ids) > 1:
        return "the two methods were scored on different queries"
    gold = method.gold.get(column.dataset, {}) if is_correlation(column.measure) else {}
    mine, other = (
        [SeedScore.of(cell, model) for cell, model in zip(cells, one.models.get((column, size), [""] * len(cells)))]
        for cells, one in zip(runs, (method, baseline))
    )
    known = np.array([gold[name] for name in sorted(gold)]) if frozenset(gold) in ids else None
    return compare_scores(column.measure, mine, other, known, correlation)


def differences_table(
    methods: Sequence[MethodResults], model_sizes: ReportSizes, marker: SignificanceMarks
) -> Table | None:
    """Return a table of the differences from the baseline with intervals of 95 %, a block for each size.

    Args:
        methods: All methods.
        model_sizes: The sizes of the blocks.
        marker: What made the tests.

    Returns:
        The table; None without a test.
    """
    tests = marker.found
    if marker.baseline is None or not any(tests.values()):
        return None
    columns = [
        column for group in group_columns(dict.fromkeys(column for column, _ in tests)) for column in group.columns
    ]
    blocks = []
    for size in dict.fromkeys(size for _, size in tests):
        rows = []
        for method in methods:
            found = [tests.get((column, size), {}).get(method.label) for column in columns]
            if any(found):
                rows.append(TableRow(method.label, tuple(TableCell() if one is None else _shown(one) for one in found)))
        if rows:
            blocks.append(Block(model_sizes.name(size), tuple(rows)))
    headings = tuple(Heading(column.dataset, measure_name(column.measure)) for column in columns)
    notes = [
        f"Differences from {marker.baseline.label} with 95 % confidence intervals, not corrected for their number: Student's t "
        "for means over queries and for several seeds; for correlations of one seed Zou's (2007), of dependent ones where both "
        "methods keep their pairs.",
        *marker.notes(),
    ]
    return Table("differences", f"Differences from {marker.baseline.label}", "size", headings, tuple(blocks), notes)


def _shown(one: CellComparison) -> TableCell:
    between = "" if one.interval is None else f" [{one.interval[0]:+.4f}, {one.interval[1]:+.4f}]"
    return TableCell(one.delta, comparison=one, shown=f"{one.delta:+.4f}{between}")
