"""Runs against a baseline: which differences are more than chance would give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.significance import NAMES, Correction, Test, adjust, paired_test
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from starbucks_retrieval.evaluate.results import Evaluation, ResultRow


@dataclass(frozen=True)
class RunComparison:
    """A row's figure on a set against the baseline's: `difference` of the means, p-value, and p-value as corrected."""

    label: str
    size: Size | None
    baseline: str
    dataset: str
    measure: str
    difference: float
    p_value: float
    adjusted: float
    significant: bool

    @property
    def mark(self) -> str:
        """`+` for significantly better than the baseline, `-` for worse, nothing for no difference to speak of."""
        return "" if not self.significant else "+" if self.difference > 0 else "-"


@dataclass(frozen=True)
class BaselineComparisons:
    """All comparisons with one baseline. The family that a correction covers is all comparisons of one measure."""

    baseline: str
    test: Test
    correction: Correction
    alpha: float
    comparisons: list[RunComparison]
    by_cell: dict[tuple[str, Size | None, str, str], RunComparison] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cells = {(one.label, one.size, one.dataset, one.measure): one for one in self.comparisons}
        object.__setattr__(self, "by_cell", cells)

    def legend(self) -> str:
        """What the marks of a table mean."""
        family = max((sum(one.measure == m for one in self.comparisons) for m in self._measures()), default=0)
        corrected = {
            "holm": f"Holm's correction over the {family} comparisons of each measure",
            "bonferroni": f"Bonferroni's correction over the {family} comparisons of each measure",
            "none": "no correction",
        }[self.correction]
        return (
            f"+ better, - worse than {self.baseline}: two-tailed {NAMES[self.test]}, p < {self.alpha:g}, "
            f"{corrected if family > 1 else 'one comparison'}"
        )

    def to_json(self) -> dict[str, Any]:
        """For the result file; p-values that are not numbers as null."""
        comparisons = []
        for one in self.comparisons:
            content = dataclasses.asdict(one) | {"size": one.size and str(one.size)}
            # NaN is the one number that is not itself, and JSON has no word for it.
            comparisons.append({name: None if value != value else value for name, value in content.items()})
        return {
            "baseline": self.baseline,
            "test": self.test,
            "correction": self.correction,
            "family": "comparisons of one measure",
            "alpha": self.alpha,
            "comparisons": comparisons,
        }

    def _measures(self) -> list[str]:
        return list(dict.fromkeys(one.measure for one in self.comparisons))


def check_choices(test: str, correction: str, alpha: float) -> None:
    """Raise UserError for a test, a correction or a level that does not exist."""
    for name, value, known in (("test", test, get_args(Test)), ("correction", correction, get_args(Correction))):
        if value not in known:
            raise UserError(f"--{name} {value}: no such {name}", f"take one of {', '.join(known)}")
    if not 0 < alpha < 1:
        raise UserError(f"--alpha {alpha} is no level of significance", "take a number between 0 and 1, such as 0.05")


def compare(
    evaluation: Evaluation, baseline: str, test: Test, correction: Correction, alpha: float, seed: int
) -> BaselineComparisons:
    """Test every row against the baseline's row on every set that both have, for measures that are means over queries.

    `baseline` is a row's title or label, or the name or path of a run. Of a method at several sizes, each other row is
    compared with the row of its own size. Raises UserError for a baseline that is not there.
    """
    rows = _rows_called(baseline, evaluation.rows)
    if not rows:
        known = ", ".join(row.title for row in evaluation.rows)
        raise UserError(f"--baseline {baseline}: no run is called so", f"take one of {known}")
    found = []
    for row in evaluation.rows:
        against = next((one for one in rows if len(rows) == 1 or one.size == row.size), None)
        if against is None or any(row is one for one in rows):
            continue
        for dataset in filter(against.by_set.__contains__, row.by_set):
            ours, theirs = (one.by_set[dataset].scores.per_query for one in (row, against))
            for measure in filter(ours.__contains__, evaluation.means):
                outcome = paired_test(ours[measure], theirs[measure], test, seed=seed)
                found.append((row, against, dataset, measure, outcome))
    if not found:
        raise UserError(f"nothing can be compared with {baseline}", "score other runs on the same sets beside it")
    comparisons = []
    for measure in evaluation.means:
        family = [one for one in found if one[3] == measure]
        for (row, against, dataset, _, outcome), p_value in zip(
            family, adjust([one[4].p_value for one in family], correction)
        ):
            comparisons.append(
                RunComparison(
                    row.label,
                    row.size,
                    against.title,
                    dataset,
                    measure,
                    outcome.difference,
                    outcome.p_value,
                    p_value,
                    p_value < alpha,
                )
            )
    return BaselineComparisons(baseline, test, correction, alpha, comparisons)


def _rows_called(name: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The row of that title, else the rows of that label, else the row with a run of that name or path."""
    by_title = [row for row in rows if row.title == name]
    by_label = [row for row in rows if row.label == name]
    by_run = [row for row in rows if any(name in (run.name, run.path) for run in row.by_set.values())]
    return by_title or by_label or by_run
