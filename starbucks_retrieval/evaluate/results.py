"""What an evaluation found: scores by run and set, averages over sets, and how they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from starbucks_retrieval.evaluate.comparison import BaselineComparisons, RunComparison
from starbucks_retrieval.evaluate.preflight import Finding
from starbucks_retrieval.evaluate.table import render
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.measures import Scores
from starbucks_retrieval.metrics.results import Cell, Results, macro_mean, set_of, sets_of_parts
from starbucks_retrieval.metrics.run_labels import titles
from starbucks_retrieval.sizes import Size, pair_name

# Per-query values of more queries than this make a result file of tens of megabytes; --per_query writes any number.
MOST_VALUES = 10_000


@dataclass(frozen=True)
class RunResult:
    """One run's scores and findings under one set; `removed` counts the results dropped for their query's own id.

    `name` tells runs apart, `label` is how tables call the method that the run is of, at `size` where that is known,
    with passages at `passage_size` where that is another.
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
        return [finding for finding in self.findings if finding.serious]


@dataclass(frozen=True)
class SetResult:
    """One set of judgements: its name, where it came from, how many queries it judges, and what it is flagged for."""

    name: str
    source: str
    queries: int
    findings: list[Finding]


@dataclass(frozen=True)
class ResultRow:
    """One method at one size: what a row of a table shows, over however many runs and sets."""

    title: str
    label: str
    size: Size | None
    by_set: dict[str, RunResult]


@dataclass(frozen=True)
class Average:
    """The mean of a measure over `sets`, for each row that has a figure on all of them; forums count as one set."""

    title: str
    sets: list[str]


@dataclass(frozen=True)
class Evaluation:
    """Runs under sets of judgements: names of the measures, of those that are means over queries, and all results.

    A set may have fewer measures than `measures` names.
    """

    measures: list[str]
    means: list[str]
    sets: list[SetResult]
    runs: list[RunResult]
    provenance: dict[str, Any]
    without: list[str] = field(default_factory=list)
    remove_identical_ids: bool = False
    tested: BaselineComparisons | None = None

    @property
    def queries(self) -> int:
        """Judged queries, all sets together."""
        return sum(judged.queries for judged in self.sets)

    @cached_property
    def rows(self) -> list[ResultRow]:
        """Runs put together to methods and sizes, in the order in which they were named."""
        parts: dict[tuple[str, Size | None], dict[str, RunResult]] = {}
        for run in self.runs:
            parts.setdefault((run.label, run.size), {})[run.dataset] = run
        shown = titles([label for label, _ in parts], [_sizes(by_set) for by_set in parts.values()])
        return [ResultRow(title, label, size, by_set) for title, ((label, size), by_set) in zip(shown, parts.items())]

    @cached_property
    def flagged(self) -> list[str]:
        """The sets on which some run has a serious finding."""
        serious = {run.dataset for run in self.runs if run.serious}
        return [judged.name for judged in self.sets if judged.name in serious]

    @cached_property
    def averages(self) -> list[Average]:
        """Of each set that has parts; over all sets, without those flagged, and without those named.

        None of a single data set. A set is flagged with any of its parts, and left out with its name or a part's.
        """
        names = [judged.name for judged in self.sets]
        if len(names) < 2:
            return []
        found = [Average(name, parts) for name, parts in sets_of_parts(names).items() if len(parts) > 1]
        if not any(average.sets == names for average in found):
            found.append(Average("Average", names))
        flagged = list(dict.fromkeys(map(set_of, self.flagged)))
        for left_out, what in ((flagged, "flagged"), (self.without, "sets")):
            kept = [name for name in names if name not in left_out and set_of(name) not in left_out]
            if kept and kept not in [average.sets for average in found]:
                shown = ", ".join(left_out) if len(left_out) < 3 else f"{len(left_out)} {what}"
                found.append(Average(f"w/o {shown}", kept))
        return found

    def value(self, row: ResultRow, dataset: str, measure: str) -> float | None:
        """A row's figure on a set, None where no run of it was scored there."""
        found = row.by_set.get(dataset)
        return None if found is None else found.scores.mean.get(measure)

    def average(self, row: ResultRow, average: Average, measure: str) -> float | None:
        """A row's average, None unless it has a figure on every set of it and the measure is a mean over queries."""
        values = {name: self.value(row, name, measure) for name in average.sets}
        present = {name: value for name, value in values.items() if value is not None}
        return macro_mean(present) if measure in self.means and len(present) == len(values) else None

    def compared(self, row: ResultRow, dataset: str, measure: str) -> RunComparison | None:
        """The comparison of a figure with the baseline's, None where there was none."""
        key = row.label, row.size, dataset, measure
        return self.tested.by_cell.get(key) if self.tested else None

    def table(self) -> str:
        """Aligned plain text with a legend of its marks; see `render`."""
        return render(self)

    def summary(self) -> str:
        """One line: how much was scored, what became of results with their query's own id, how many findings."""
        found = [finding for run in self.runs for finding in run.findings]
        found += [finding for judged in self.sets for finding in judged.findings]
        serious = sum(finding.serious for finding in found)
        marked = f" ({serious} serious, marked ! in the table)" if serious else ""
        runs = len({run.path for run in self.runs})
        on = f" on {len(self.sets)} sets" if len(self.sets) > 1 else ""
        removed = sum(run.removed for run in self.runs)
        policy = f"removed ({removed})" if self.remove_identical_ids else "kept"
        return (
            f"{runs} {'run' if runs == 1 else 'runs'}{on}, {self.queries} judged queries, results with their query's "
            f"own id {policy}, preflight findings: {len(found)}{marked}"
        )

    def results(self, *, values: bool = True) -> Results:
        """As a result file holds it: a cell for each run, set and measure, and beside them what led to them.

        `values` adds the figure of each query, for measures that are means over no more than 10,000 of them.
        """
        labels = list(dict.fromkeys(run.label for run in self.runs))
        queries = {judged.name: judged.queries for judged in self.sets}
        cells = [
            Cell(
                run.dataset,
                measure,
                run.size,
                run.scores.mean[measure],
                queries[run.dataset],
                run.passage_size,
                values=run.scores.per_query[measure]
                if values and measure in self.means and queries[run.dataset] <= MOST_VALUES
                else None,
                label=run.label if len(labels) > 1 else None,
            )
            for run in self.runs
            for measure in run.scores.mean
        ]
        return Results("evaluate", ", ".join(labels), cells, self._more())

    def figures(self) -> dict[str, Any]:
        """Everything but the figures of single queries, ready for JSON."""
        return self.results(values=False).to_json()

    def _more(self) -> dict[str, Any]:
        more: dict[str, Any] = {
            "measures": self.measures,
            "queries": self.queries,
            "sets": [dataclasses.asdict(judged) | {"flagged": judged.name in self.flagged} for judged in self.sets],
            "runs": [_run(run) for run in self.runs],
            "averages": [
                {
                    "label": row.label,
                    "size": row.size and str(row.size),
                    "measure": measure,
                    "sets": average.sets,
                    "value": self.average(row, average, measure),
                }
                for row in self.rows
                for measure in self.means
                for average in self.averages
            ],
            "identical_ids": "removed" if self.remove_identical_ids else "kept",
            "provenance": self.provenance,
        }
        return more | ({"significance": self.tested.to_json()} if self.tested else {})

    def per_query(self) -> Iterator[tuple[str, str, str, float, str]]:
        """(run, query_id, measure, value, set) of every judged query, queries in the order of the qrels."""
        for run in self.runs:
            for measure in run.scores.mean:
                for query_id, value in run.scores.per_query[measure].items():
                    yield run.name, query_id, measure, value, run.dataset


def _sizes(by_set: dict[str, RunResult]) -> str:
    """What a row's title says of its sizes: `2:64`, or `2:64/4:64` where its passages have another."""
    names = [pair_name(run.size, run.passage_size) for run in by_set.values() if run.size]
    return " ".join(dict.fromkeys(names))


def _run(run: RunResult) -> dict[str, Any]:
    return {
        "name": run.name,
        "label": run.label,
        "size": run.size and str(run.size),
        **({"passage_size": str(run.passage_size)} if run.passage_size else {}),
        "dataset": run.dataset,
        "path": run.path,
        "blake2b": run.digest,
        "measures": run.scores.mean,
        "findings": [dataclasses.asdict(finding) for finding in run.findings],
        "removed_identical_ids": run.removed,
    }


def write_per_query(path: str | Path, evaluation: Evaluation) -> None:
    """Write the per-query values as tab-separated text under a header, whole or not at all, with all their digits."""
    with atomic_writer(Path(path)) as out:
        out.write(b"run\tquery_id\tmeasure\tvalue\tset\n")
        for run, query_id, measure, value, dataset in evaluation.per_query():
            out.write(f"{run}\t{query_id}\t{measure}\t{value!r}\t{dataset}\n".encode())
