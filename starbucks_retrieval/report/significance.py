"""Significance tests of scores against a baseline's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starbucks_retrieval.metrics import significance
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.columns import Column
from starbucks_retrieval.report.inputs import MethodResults
from starbucks_retrieval.sizes import Size

ALPHA = 0.05
CORRECTIONS = {"none": "no correction", "holm": "Holm's correction", "bonferroni": "Bonferroni's correction"}
PAIRED, FISHER = "paired t-test", "Fisher's z"
_CORRELATIONS = ("spearman", "pearson")


@dataclass(frozen=True)
class CellComparison:
    """The test of one score against the baseline's.

    Args:
        delta: The score less the baseline's.
        p: The p-value.
        corrected: The p-value after the correction for several methods.
        test: The name of the test.
    """

    delta: float
    p: float
    corrected: float
    test: str

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below 0.05."""
        return self.corrected < ALPHA


class SignificanceMarks:
    """Tests methods against a baseline, cell by cell, and counts the tests.

    The correction is over all methods that are compared with the baseline on one data set at one size.

    Args:
        baseline: The method that the others are compared with; None tests nothing.
        correction: The correction for several methods.
    """

    def __init__(self, baseline: MethodResults | None, correction: significance.Correction) -> None:
        self.baseline = baseline
        self.correction = correction
        self.tests: Counter[str] = Counter()
        self.untested: Counter[str] = Counter()

    def compare(self, methods: Sequence[MethodResults], column: Column, size: Size | None) -> dict[str, CellComparison]:
        """Return the tests of the methods for a column at a size, by label; those that cannot be made are counted."""
        reference = None if self.baseline is None else self.baseline.cell(column, size)
        if reference is None:
            return {}
        found: dict[str, CellComparison] = {}
        for method in methods:
            cell = method.cell(column, size)
            if cell is None or method is self.baseline:
                continue
            outcome = _test(cell, reference)
            if isinstance(outcome, str):
                self.untested[outcome] += 1
                continue
            self.tests[outcome.test] += 1
            found[method.label] = outcome
        corrected = significance.adjust([one.p for one in found.values()], self.correction)
        return {label: replace(one, corrected=p) for (label, one), p in zip(found.items(), corrected)}

    def notes(self) -> list[str]:
        """Return sentences about the tests, to stand below a table."""
        if self.baseline is None:
            return ["No baseline was named (--baseline), so nothing was tested for significance."]
        notes = []
        if self.tests:
            names_of_tests = {
                PAIRED: "two-tailed paired t-test over queries",
                FISHER: "Fisher's z for independent correlations, two-tailed, as published",
            }
            made = [
                f"{text} ({self.tests[name]} comparisons)" for name, text in names_of_tests.items() if self.tests[name]
            ]
            notes.append(
                f"* differs from {self.baseline.label} (p < {ALPHA}): {' and '.join(made)}; {CORRECTIONS[self.correction]}"
                + (" over the methods compared on one data set at one size." if self.correction != "none" else ".")
            )
            if self.tests[FISHER]:
                notes.append(
                    "Fisher's z takes two correlations for independent, although both methods scored the same pairs: "
                    "it finds fewer differences than a test for dependent correlations would."
                )
        for reason, count in self.untested.items():
            notes.append(f"Not tested, and so without a mark: {count} comparisons, because {reason}.")
        return notes


def _test(cell: Cell, reference: Cell) -> CellComparison | str:
    """Return the test, or why it cannot be made."""
    if cell.measure.lower() in _CORRELATIONS:
        name, p = FISHER, significance.fisher_z(cell.value, cell.count, reference.value, reference.count)[1]
    elif not cell.values or not reference.values:
        return "a figure comes without those of single queries"
    elif cell.values.keys() != reference.values.keys():
        return "the two methods were scored on different queries"
    else:
        name, p = PAIRED, significance.paired_test(cell.values, reference.values).p_value
    if math.isnan(p):
        return "there are too few queries or pairs"
    return CellComparison(cell.value - reference.value, p, p, name)
