"""Evaluations as plain text: one table of one set, or a table for each measure over several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.cli.tables import align_columns

if TYPE_CHECKING:
    from starbucks_retrieval.evaluate.results import Evaluation, ResultRow

MISSING = "–"
MARKS = "+-!"  # they stand behind the digits
WIDTH = 100  # beyond it, sets become rows and runs columns, if that is narrower


def render(evaluation: Evaluation) -> str:
    """Aligned plain text, with a legend of its marks below.

    One set: rows are runs, columns are measures. Several sets: a table for each measure, whose columns are sets and
    averages, or whose rows are, where that fits the screen better. `!` marks a figure with a serious finding, `+` and
    `-` one that differs significantly from the baseline's, `–` one that does not exist.
    """
    if len(evaluation.sets) == 1:
        tables = [_of_one_set(evaluation)]
    else:
        tables = [_of_measure(evaluation, measure) for measure in evaluation.measures]
    legend = _legend(evaluation)
    return "\n\n".join([*tables, *(["\n".join(legend)] if legend else [])])


def _of_one_set(evaluation: Evaluation) -> str:
    (judged,) = evaluation.sets
    rows = [["run", *evaluation.measures]]
    for row in evaluation.rows:
        cells = [_figure(evaluation, row, judged.name, measure) for measure in evaluation.measures]
        rows.append([row.title, *cells])
    serious = [False, *(bool(row.by_set[judged.name].serious) for row in evaluation.rows)]
    return "\n".join(line + "  !" * bad for line, bad in zip(align_columns(rows, marks=MARKS), serious))


def _of_measure(evaluation: Evaluation, measure: str) -> str:
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
    return "\n".join(by_set if wide > WIDTH and narrow < wide else by_run)


def _figure(evaluation: Evaluation, row: ResultRow, dataset: str, measure: str) -> str:
    value = evaluation.value(row, dataset, measure)
    if value is None:
        return MISSING
    compared = evaluation.compared(row, dataset, measure)
    shown = f"{value:.4f}" if measure in evaluation.means else format_number(value)
    return shown + (compared.mark if compared else "")


def _legend(evaluation: Evaluation) -> list[str]:
    lines = [evaluation.tested.legend()] if evaluation.tested else []
    several = len(evaluation.sets) > 1
    for row in evaluation.rows:
        for dataset, run in row.by_set.items():
            if run.serious:
                where = f"{row.title} on {dataset}" if several else row.title
                lines.append(f"! {where}: {', '.join(finding.kind.replace('_', ' ') for finding in run.serious)}")
    return lines
