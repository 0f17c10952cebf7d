"""The results of an evaluation: scores by run and set, averages over sets; as a table, a result file or tsv."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.evaluate.comparison import BaselineComparisons, ResultRow, RunComparison, RunResult
from starbucks_retrieval.evaluate.preflight import Finding
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.results import Cell, Results, macro_mean, set_of, sets_of_parts
from starbucks_retrieval.metrics.run_labels import run_titles
from starbucks_retrieval.sizes import Size, pair_name

MAX_VALUES = 10_000  # queries whose values a result file holds; more need tens of megabytes (--per_query writes them)
MISSING = "–"
MARKS = "+-!"  # written behind the digits
MAX_WIDTH = 100  # characters; in wider tables sets become rows and runs columns, if that is narrower


@dataclass(frozen=True)
class SetResult:
    """One set of judgements.

    Attributes:
        name: Its name in tables.
        source: Where it was read from.
        queries: Number of judged queries.
        findings: What the preflight found in the judgements.
    """

    name: str
    source: str
    queries: int
    findings: list[Finding]


@dataclass(frozen=True)
class Average:
    """An average over `sets`, for rows that have a figure on all of them; CQADupStack's forums count as one set."""

    title: str
    sets: list[str]


@dataclass(frozen=True)
class Evaluation:
    """The results of all runs on all sets of judgements.

    Attributes:
        measures: Names of all measures; a set may have fewer.
        means: Those that are means over queries.
        sets: The sets of judgements.
        runs: One result for each run and set.
        provenance: What the figures were computed from.
        without: Sets that a further average leaves out.
        remove_identical_ids: Whether results with their query's own id were dropped.
        comparisons: Comparisons with the baseline, None without a baseline.
    """

    measures: list[str]
    means: list[str]
    sets: list[SetResult]
    runs: list[RunResult]
    provenance: dict[str, Any]
    without: list[str] = field(default_factory=list)
    remove_identical_ids: bool = False
    comparisons: BaselineComparisons | None = None

    @property
    def queries(self) -> int:
        """Number of judged queries of all sets together."""
        return sum(judged.queries for judged in self.sets)

    @cached_property
    def rows(self) -> list[ResultRow]:
        """The rows of the table: runs of one method and size, in the order in which they were given."""
        parts: dict[tuple[str, Size | None], dict[str, RunResult]] = {}
        for run in self.runs:
            parts.setdefault((run.label, run.size), {})[run.dataset] = run
        shown = run_titles([label for label, _ in parts], [_size_names(by_set) for by_set in parts.values()])
        return [ResultRow(title, label, size, by_set) for title, ((label, size), by_set) in zip(shown, parts.items())]

    @cached_property
    def flagged(self) -> list[str]:
        """The sets on which some run has a serious finding."""
        serious = {run.dataset for run in self.runs if run.serious}
        return [judged.name for judged in self.sets if judged.name in serious]

    @cached_property
    def averages(self) -> list[Average]:
        """Averages of each set with parts, of all sets, of all but the flagged sets, and of all but those in `without`.

        Empty for a single set. A set is flagged if one of its parts is; it is left out by its name or that of a part.
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
        """Return a row's figure on a set, None if no run of the row was scored on it."""
        found = row.by_set.get(dataset)
        return None if found is None else found.scores.mean.get(measure)

    def average(self, row: ResultRow, average: Average, measure: str) -> float | None:
        """Return a row's average, None if a set has no figure or the measure is not a mean over queries."""
        values = {name: self.value(row, name, measure) for name in average.sets}
        present = {name: value for name, value in values.items() if value is not None}
        return macro_mean(present) if measure in self.means and len(present) == len(values) else None

    def comparison(self, row: ResultRow, dataset: str, measure: str) -> RunComparison | None:
        """Return the comparison of a figure with the baseline's, None if there is none."""
        key = row.label, row.size, dataset, measure
        return self.comparisons.by_cell.get(key) if self.comparisons else None

    def table(self) -> str:
        """Return aligned plain text, with a legend of its marks below.

        One set: rows are runs, columns are measures. Several sets: a table for each measure, whose columns are sets and
        averages, or whose rows are where that fits the screen better. `!` marks a figure with a serious finding, `+` and
        `-` a figure that differs significantly from the baseline's, `–` a missing figure.
        """
        if len(self.sets) == 1:
            tables = [_table_of_set(self)]
        else:
            tables = [_table_of_measure(self, measure) for measure in self.measures]
        legend = _legend(self)
        return "\n\n".join([*tables, *(["\n".join(legend)] if legend else [])])

    def summary(self) -> str:
        """Return one line: the number of runs and queries, the policy on identical ids, the number of findings."""
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
        """Return the content of a result file: a cell for each run, set and measure; findings and provenance in `more`.

        With `values`, cells of measures that are means over at most 10,000 queries hold the value of each query.
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
                if values and measure in self.means and queries[run.dataset] <= MAX_VALUES
                else None,
                label=run.label if len(labels) > 1 else None,
            )
            for run in self.runs
            for measure in run.scores.mean
        ]
        return Results("evaluate", ", ".join(labels), cells, self._more())

    def figures(self) -> dict[str, Any]:
        """Return the content of a result file without values per query, ready for JSON."""
        return self.results(values=False).to_json()

    def _more(self) -> dict[str, Any]:
        more: dict[str, Any] = {
            "measures": self.measures,
            "queries": self.queries,
            "sets": [dataclasses.asdict(judged) | {"flagged": judged.name in self.flagged} for judged in self.sets],
            "runs": [_run_to_json(run) for run in self.runs],
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
        return more | ({"significance": self.comparisons.to_json()} if self.comparisons else {})

    def per_query(self) -> Iterator[tuple[str, str, str, float, str]]:
        """Yield (run, query_id, measure, value, set) of every judged query, in the order of the qrels."""
        for run in self.runs:
            for measure in run.scores.mean:
                for query_id, value in run.scores.per_query[measure].items():
                    yield run.name, query_id, measure, value, run.dataset


def write_per_query(path: str | Path, evaluation: Evaluation) -> None:
    """Write the values per query as tsv with a header and all digits.

    Args:
        path: The file to write, compressed if its name ends in .gz. It appears complete or not at all.
        evaluation: The results; each row has run, query_id, measure, value and set.
    """
    with atomic_writer(Path(path)) as out:
        out.write(b"run\tquery_id\tmeasure\tvalue\tset\n")
        for run, query_id, measure, value, dataset in evaluation.per_query():
            out.write(f"{run}\t{query_id}\t{measure}\t{value!r}\t{dataset}\n".encode())


def _size_names(by_set: dict[str, RunResult]) -> str:
    """Return the sizes in a row's title: `2:64`, or `2:64/4:64` if passages have another size than queries."""
    names = [pair_name(run.size, run.passage_size) for run in by_set.values() if run.size]
    return " ".join(dict.fromkeys(names))


def _run_to_json(run: RunResult) -> dict[str, Any]:
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


def _table_of_set(evaluation: Evaluation) -> str:
    (judged,) = evaluation.sets
    rows = [["run", *evaluation.measures]]
    for row in evaluation.rows:
        cells = [_figure(evaluation, row, judged.name, measure) for measure in evaluation.measures]
        rows.append([row.title, *cells])
    serious = [False, *(bool(row.by_set[judged.name].serious) for row in evaluation.rows)]
    return "\n".join(line + "  !" * bad for line, bad in zip(align_columns(rows, marks=MARKS), serious))


def _table_of_measure(evaluation: Evaluation, measure: str) -> str:
    grid = [[measure, *(row.title for row in evaluation.rows)]]
    for judged in evaluation.sets:
        grid.append([judged.name])
        for row in evaluation.rows:
            bad = judged.name in row.by_set and bool(row.by_set[judged.name].serious)
            grid[-1].append(_figure(evaluation, row, judged.name, measure) + "!" * bad)
    for average in evaluation.averages if measure in evaluation.means else ():
        values = [evaluation.average(row, average, measure) for row in evaluation.rows]
        grid.append([average.title, *(MISSING if value is None else f"{value:.4f}" for value in values)])
    by_run = align_columns([list(column) for column in zip(*grid)], marks=MARKS)
    by_set = align_columns(grid, marks=MARKS)
    wide, narrow = (max(map(len, lines)) for lines in (by_run, by_set))
    return "\n".join(by_set if wide > MAX_WIDTH and narrow < wide else by_run)


def _figure(evaluation: Evaluation, row: ResultRow, dataset: str, measure: str) -> str:
    value = evaluation.value(row, dataset, measure)
    if value is None:
        return MISSING
    comparison = evaluation.comparison(row, dataset, measure)
    shown = f"{value:.4f}" if measure in evaluation.means else format_number(value)
    return shown + (comparison.mark if comparison else "")


def _legend(evaluation: Evaluation) -> list[str]:
    lines = [evaluation.comparisons.legend()] if evaluation.comparisons else []
    several = len(evaluation.sets) > 1
    for row in evaluation.rows:
        for dataset, run in row.by_set.items():
            if run.serious:
                where = f"{row.title} on {dataset}" if several else row.title
                lines.append(f"! {where}: {', '.join(finding.kind.replace('_', ' ') for finding in run.serious)}")
    return lines
