"""Results of single runs, and their comparison with a baseline: which differences are significant."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.inputs import ComparisonArguments, Family
from starbucks_retrieval.evaluate.preflight import Finding
from starbucks_retrieval.metrics.equivalence import (
    Equivalence,
    adjust_equivalence,
    mean_difference,
    verdict,
)
from starbucks_retrieval.metrics.measures import Scores
from starbucks_retrieval.metrics.significance import TEST_NAMES, Correction, Test, adjust, paired_test
from starbucks_retrieval.sizes import Size

MAX_LINES = 60  # comparisons that a terminal shows with their intervals
_UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class RunResult:
    """The scores and findings of one run on one set of judgements.

    Attributes:
        name: The file's name without endings; its path where two runs share it.
        path: The file.
        digest: blake2b hash of the file.
        dataset: Name of the set.
        label: What tables call the method that made the run.
        size: Size of the embeddings (of the queries, if passages have another), None if unknown.
        scores: Mean and value per query of each measure.
        findings: What the preflight found.
        removed: Number of results dropped because their docid is the query's id.
        passage_size: Size of the passages, only where it differs from `size`.
    """

    name: str
    path: str
    digest: str
    dataset: str
    label: str
    size: Size | None
    scores: Scores
    findings: list[Finding]
    removed: int
    passage_size: Size | None = None

    @property
    def serious(self) -> list[Finding]:
        """The findings that make the figures wrong or not comparable."""
        return [finding for finding in self.findings if finding.serious]


@dataclass(frozen=True)
class ResultRow:
    """A row of a table: one method at one size.

    Attributes:
        title: What the table calls it.
        label: The method.
        size: The size of the embeddings; None if unknown.
        by_set: Name of a set → the run that was scored on it.
    """

    title: str
    label: str
    size: Size | None
    by_set: dict[str, RunResult]


@dataclass(frozen=True)
class RunComparison:
    """A figure compared with the baseline's.

    Attributes:
        label, size, baseline, dataset, measure: What is compared.
        difference: Difference of the means.
        p_value, adjusted: The p-value, and the corrected one.
        significant: Whether the corrected one is below the level.
        interval: 95 % confidence interval of the difference: that of the bootstrap test, else Student's.
        equivalence: Corrected p-values of two one-sided t-tests with the margin, None without a margin.
    """

    label: str
    size: Size | None
    baseline: str
    dataset: str
    measure: str
    difference: float
    p_value: float
    adjusted: float
    significant: bool
    interval: tuple[float, float] = _UNKNOWN
    equivalence: Equivalence | None = None

    @property
    def mark(self) -> str:
        """`+` if significantly better than the baseline, `-` if worse, else empty."""
        return "" if not self.significant else "+" if self.difference > 0 else "-"


@dataclass(frozen=True)
class BaselineComparisons:
    """All comparisons with one baseline.

    Attributes:
        baseline: What the baseline is called.
        test: The test of significance.
        correction: The correction for several comparisons.
        alpha: The level: a difference whose corrected p-value is below it is marked.
        comparisons: The comparisons.
        margin: The largest difference that does not matter, for tests of equivalence; None if none were made.
        family: What the correction covers: the comparisons of one measure ("measure"), or all ("table").
        by_cell: (label, size, set, measure) → comparison.
    """

    baseline: str
    test: Test
    correction: Correction
    alpha: float
    comparisons: list[RunComparison]
    margin: float | None = None
    family: Family = "measure"
    by_cell: dict[tuple[str, Size | None, str, str], RunComparison] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cells = {(one.label, one.size, one.dataset, one.measure): one for one in self.comparisons}
        object.__setattr__(self, "by_cell", cells)

    def legend(self) -> str:
        """Return the line that explains the marks of a table."""
        family = len(self.comparisons)
        over = f"over all {family} comparisons"
        if self.family == "measure":
            family = max(Counter(one.measure for one in self.comparisons).values(), default=0)
            over = f"over the {family} comparisons of each measure"
        names = {"holm": "Holm's correction", "bonferroni": "Bonferroni's correction"}
        corrected = f"{names[self.correction]} {over}" if self.correction in names else "no correction"
        return (
            f"+ better, - worse than {self.baseline}: two-tailed {TEST_NAMES[self.test]}, p < {self.alpha:g}, "
            f"{corrected if family > 1 else 'one comparison'}"
        )

    def table(self) -> str:
        """Return the differences with intervals, p-values and verdicts as aligned text, one line for each comparison."""
        head = ["run", "set", "measure", "difference", "95 % interval", "p"]
        rows = [[*head, *([] if self.margin is None else ["within margin"])]]
        for one in self.comparisons[:MAX_LINES]:
            name = one.label if one.size is None else f"{one.label} {one.size}"
            shown = [f"{value:+.4f}" for value in (one.difference, *one.interval)]
            rows.append([name, one.dataset, one.measure, shown[0], f"{shown[1]} {shown[2]}", f"{one.adjusted:.3g}"])
            if one.equivalence is not None:
                found = verdict(one.equivalence, self.alpha)
                p_value = one.equivalence[found != "not inferior"]
                rows[-1].append(f"{found} (p = {p_value:.3g})")
        lines = [f"differences from {self.baseline}:", *align_columns(rows, "lllrrr")]
        if len(self.comparisons) > MAX_LINES:
            lines.append(f"… and {len(self.comparisons) - MAX_LINES} more, in the result file (--output)")
        if self.margin is not None:
            lines.append(
                f"margin {self.margin:g}, named by you; equivalent: two one-sided t-tests, p < {self.alpha:g}; not inferior: "
                "the lower of them alone"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the content for a result file, with null for what is NaN."""
        comparisons = []
        for one in self.comparisons:
            content = dataclasses.asdict(one) | {"size": one.size and str(one.size)}
            equivalence = content.pop("equivalence")
            content["interval"] = list(one.interval) if all(map(math.isfinite, one.interval)) else None
            if equivalence is not None:
                content |= {f"p_{kind}": p for kind, p in zip(Equivalence._fields, equivalence)}
                content["verdict"] = verdict(equivalence, self.alpha)
            comparisons.append({name: None if value != value else value for name, value in content.items()})  # NaN
        margin = {} if self.margin is None else {"margin": self.margin}
        return {
            **margin,
            "baseline": self.baseline,
            "test": self.test,
            "correction": self.correction,
            "family": "comparisons of one measure" if self.family == "measure" else "all comparisons",
            "alpha": self.alpha,
            "comparisons": comparisons,
        }


def compare(
    rows: Sequence[ResultRow], measures: Sequence[str], options: ComparisonArguments, seed: int
) -> BaselineComparisons:
    """Test every row against the baseline's row on every set that both have.

    Args:
        rows: All rows of the evaluation.
        measures: The measures that are means over queries.
        options: The baseline, the test and what a correction covers. The baseline is a row's title or label, or the name
            or path of a run. If its method has several sizes, a row is compared with the baseline's row of its own size.
        seed: Seed of the tests that resample.

    Raises:
        UserError: There is no such baseline, or nothing to compare with it.
    """
    baseline, margin = str(options.baseline), options.margin
    baselines = _find_rows(baseline, rows)
    if not baselines:
        known = ", ".join(row.title for row in rows)
        raise UserError(f"--baseline {baseline}: no run has this name", f"use one of {known}")
    found = []
    for row in rows:
        reference = next((other for other in baselines if len(baselines) == 1 or other.size == row.size), None)
        if reference is None or any(row is other for other in baselines):
            continue
        for dataset in filter(reference.by_set.__contains__, row.by_set):
            ours, theirs = (one.by_set[dataset].scores.per_query for one in (row, reference))
            for measure in filter(ours.__contains__, measures):
                outcome = paired_test(ours[measure], theirs[measure], options.test, seed=seed)
                spread = mean_difference(ours[measure], theirs[measure])
                equal = spread.equivalence(margin) if margin is not None else None
                found.append((row, reference, dataset, measure, outcome, outcome.interval or spread.interval(), equal))
    if not found:
        raise UserError(f"nothing can be compared with {baseline}", "score other runs on the same sets beside it")
    comparisons = []
    for part in measures if options.family == "measure" else [None]:
        members = [one for one in found if part in (None, one[3])]
        adjusted = adjust([one[4].p_value for one in members], options.correction)
        equals = adjust_equivalence([one[6] for one in members if one[6] is not None], options.correction)
        for number, (row, reference, dataset, measure, outcome, interval, _) in enumerate(members):
            cell = row.label, row.size, reference.title, dataset, measure
            p_value, equal = adjusted[number], equals[number] if equals else None
            values = outcome.difference, outcome.p_value, p_value, p_value < options.alpha
            comparisons.append(RunComparison(*cell, *values, interval, equal))
    return BaselineComparisons(
        baseline, options.test, options.correction, options.alpha, comparisons, margin, options.family
    )


def _find_rows(name: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the row with this title, else the rows with this label, else the row with a run of this name or path."""
    by_title = [row for row in rows if row.title == name]
    by_label = [row for row in rows if row.label == name]
    by_run = [row for row in rows if any(name in (run.name, run.path) for run in row.by_set.values())]
    return by_title or by_label or by_run
