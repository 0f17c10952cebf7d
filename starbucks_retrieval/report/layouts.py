"""The tables of the Starbucks paper (averages: Table 1; every size: Table 4; sizes as columns: Tables 2, 3) and their tests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from starbucks_retrieval.report.columns import (
    AVERAGE,
    Column,
    ColumnGroup,
    MethodResults,
    ReportSizes,
    group_columns,
    mean_or_none,
    measure_name,
)
from starbucks_retrieval.report.comparisons import SignificanceMarks
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.merging import are_same
from starbucks_retrieval.report.published import NO_PUBLISHED, Published
from starbucks_retrieval.report.tables import (
    DASH,
    DIGITS,
    Block,
    CellComparison,
    Heading,
    Table,
    TableCell,
    TableRow,
)
from starbucks_retrieval.sizes import Size

_NO_SIZE = "†"


def averages_table(inputs: ReportInputs, model_sizes: ReportSizes, published: Published = NO_PUBLISHED) -> Table:
    """Return a table as Table 1: one row per method, one column per data set, means over the sizes.

    Args:
        inputs: The scores.
        model_sizes: The sizes of the means, one or more.
        published: The paper's scores.
    """
    groups = group_columns(inputs.columns)
    rows = []
    for method in inputs.methods:
        sizes: Sequence[Size | None] = model_sizes.sizes if method.has_sizes else (None,)
        values = {column: mean_or_none([method.value(column, size) for size in sizes]) for column in inputs.columns}
        rows.append(TableRow(method.label, _cells(groups, values), note="" if method.has_sizes else _NO_SIZE))
    blocks = [Block("", (*mark_best(rows), *published.averages(groups)))]
    notes = [f"Means over the sizes {model_sizes}."]
    if any(row.note for row in rows):
        notes.append(f"{_NO_SIZE} The files of this method name no size; its figures are no means over sizes.")
    notes += _notes(blocks, "A mean over sizes or data sets", inputs, published)
    return Table("averages", "Averages over sizes", "", _headings(groups), tuple(blocks), notes)


def by_size_table(
    inputs: ReportInputs, model_sizes: ReportSizes, marker: SignificanceMarks, published: Published = NO_PUBLISHED
) -> Table:
    """Return a table as Table 4: one block per size, one row per method, marks for significant differences.

    Args:
        inputs: The scores.
        model_sizes: The sizes; scores without a size have a block of their own.
        marker: Tests scores against the baseline's.
        published: The paper's scores.
    """
    groups = group_columns(inputs.columns)
    without = any(size is None for method in inputs.methods for _, size in method.cells)
    sizes: list[Size | None] = [*model_sizes, *([None] if without else [])]
    tests = marker.compare(inputs.methods, inputs.columns, sizes)
    blocks = []
    for size in sizes:
        rows = []
        for method in inputs.methods:
            values = {column: method.value(column, size) for column in inputs.columns}
            compared = {column: tests.get((column, size), {}).get(method.label) for column in inputs.columns}
            cells = _with_tests(groups, _cells(groups, values, _spreads(method, size)), compared)
            # A method without sizes has no row at a size, and a method with sizes none in the block without.
            if (size is not None and method.has_sizes) or any(cell.value is not None for cell in cells):
                rows.append(TableRow(method.label, cells, baseline=method is marker.baseline))
        blocks.append(Block(model_sizes.name(size), (*mark_best(rows), *published.at_size(groups, size))))
    notes = marker.notes()
    if marker.tests and any(group.averaged for group in groups):
        notes.append("Averages are not tested: a test needs a count of queries or pairs, which an average lacks.")
    notes += _notes(blocks, "An average over data sets", inputs, published)
    return Table("by_size", "Every size", "size", _headings(groups), tuple(blocks), notes)


def ablation_table(inputs: ReportInputs, model_sizes: ReportSizes, published: Published = NO_PUBLISHED) -> Table:
    """Return a table as Tables 2 and 3: one block per data set or average, one column per size, and their mean.

    Args:
        inputs: The scores.
        model_sizes: The sizes of the columns.
        published: The paper's scores.
    """
    blocks = []
    for group in group_columns(inputs.columns):
        for column in [*group.columns, *([Column(AVERAGE, group.measure)] if group.averaged else [])]:
            rows = []
            for method in inputs.methods:
                values = [column_score(method, group, column, size) for size in model_sizes]
                if any(value is not None for value in values):
                    rows.append(TableRow(method.label, tuple(map(TableCell, [*values, mean_or_none(values)]))))
            if rows:
                title = f"{column.dataset} {measure_name(column.measure)}"
                blocks.append(Block(title, (*mark_best(rows), *published.over_sizes(group, column, model_sizes))))
    headings = (*(Heading(model_sizes.name(size)) for size in model_sizes), Heading(AVERAGE, average=True))
    notes = _notes(blocks, "A mean over sizes or data sets", inputs, published)
    return Table("ablation", "Sizes side by side", "data set", headings, tuple(blocks), notes)


def column_score(method: MethodResults, group: ColumnGroup, column: Column, size: Size | None) -> float | None:
    """Return the score of a method at a size, or None if it is missing.

    Args:
        method: The method.
        group: The columns of one measure.
        column: One of them, or `Column(AVERAGE, measure)` for the mean over all of them.
        size: The size; None for scores without a size.
    """
    if column.dataset == AVERAGE:
        return mean_or_none([method.value(one, size) for one in group.columns])
    return method.value(column, size)


def _headings(groups: Sequence[ColumnGroup]) -> tuple[Heading, ...]:
    found = []
    for group in groups:
        found += [Heading(column.dataset, measure_name(group.measure)) for column in group.columns]
        if group.averaged:
            found.append(Heading(AVERAGE, measure_name(group.measure), average=True))
    return tuple(found)


def _spreads(method: MethodResults, size: Size | None) -> dict[Column, str]:
    """Return the means over seeds with their standard deviations, as text, of the columns that have several."""
    shown = {}
    for (column, known), cells in method.seeds.items():
        if known == size and len(cells) > 1 and not are_same(cells):
            values = [cell.value for cell in cells]
            shown[column] = f"{statistics.fmean(values):.{DIGITS}f} ± {statistics.stdev(values):.{DIGITS}f}"
    return shown


def _cells(
    groups: Sequence[ColumnGroup], values: Mapping[Column, float | None], shown: Mapping[Column, str] | None = None
) -> tuple[TableCell, ...]:
    """Return the scores in the order of `_headings`; `shown` has texts for some of them."""
    found: list[TableCell] = []
    for group in groups:
        known = [values[column] for column in group.columns]
        found += [TableCell(values[column], shown=(shown or {}).get(column)) for column in group.columns]
        if group.averaged:
            found.append(TableCell(mean_or_none(known)))
    return tuple(found)


def _with_tests(
    groups: Sequence[ColumnGroup], cells: Sequence[TableCell], tests: Mapping[Column, CellComparison | None]
) -> tuple[TableCell, ...]:
    """Return the cells with their comparisons; averages have none."""
    by_position: list[CellComparison | None] = []
    for group in groups:
        by_position += [tests[column] for column in group.columns]
        by_position += [None] * group.averaged
    return tuple(replace(cell, comparison=test) for cell, test in zip(cells, by_position, strict=True))


def _notes(blocks: Sequence[Block], average: str, inputs: ReportInputs, published: Published) -> list[str]:
    """Return the notes about missing and published figures of a table."""
    rows = [row for block in blocks for row in block.rows]
    complete = all(cell.value is not None for row in rows if not row.published for cell in row.cells)
    missing = [f"{DASH} was not measured. {average} in which a figure is missing is missing too."]
    return ([] if complete else missing) + published.notes(rows, inputs.columns)


def mark_best(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """Return the rows with the best measured cells of every column marked.

    All cells that print as the best one does are marked. A column with one measured cell has no best.

    Example:
        >>> rows = mark_best([TableRow("a", (TableCell(0.5),)), TableRow("b", (TableCell(0.25),))])
        >>> [row.cells[0].best for row in rows]
        [True, False]
    """
    measured = [row for row in rows if not row.published]
    best: list[str | None] = []
    for cells in zip(*(row.cells for row in measured)):
        known = sorted((cell.value, cell.text) for cell in cells if cell.value is not None)
        best.append(known[-1][1] if len(known) > 1 else None)
    return tuple(
        row
        if row.published
        else replace(row, cells=tuple(replace(cell, best=cell.text == text) for cell, text in zip(row.cells, best)))
        for row in rows
    )
