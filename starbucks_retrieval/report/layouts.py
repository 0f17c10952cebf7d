"""The papers' layouts: averages over sizes (Table 1), every size (Table 4), sizes as columns (Tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from starbucks_retrieval.report.columns import AVERAGE, Column, ColumnGroup, grouped, mean, measure_name
from starbucks_retrieval.report.inputs import Inputs, MethodResults
from starbucks_retrieval.report.published import NO_PUBLISHED, Published
from starbucks_retrieval.report.significance import CellComparison, SignificanceMarks
from starbucks_retrieval.report.size_list import ReportSizes
from starbucks_retrieval.report.tables import DASH, Block, Entry, Heading, Table, TableRow, mark_best
from starbucks_retrieval.sizes import Size

_NO_SIZE = "†"


def averages(inputs: Inputs, model_sizes: ReportSizes, published: Published = NO_PUBLISHED) -> Table:
    """Table 1: a row a method, a column a data set; every figure is the mean over the sizes of the ladder (one at least)."""
    groups = grouped(inputs.columns)
    rows = []
    for method in inputs.methods:
        sized = _sized(method)
        values = {
            column: mean([method.value(column, size) for size in model_sizes]) if sized else method.value(column, None)
            for column in inputs.columns
        }
        rows.append(TableRow(method.label, _entries(groups, values), note="" if sized else _NO_SIZE))
    block = Block("", (*mark_best(rows), *published.averages(groups)))
    notes = [f"Means over the sizes {model_sizes}."]
    if any(row.note for row in rows):
        notes.append(f"{_NO_SIZE} The files of this method name no size; its figures are no means over sizes.")
    notes += _missing(block.rows, "A mean over sizes or data sets") + published.notes(block.rows, inputs.columns)
    return Table("averages", "Averages over sizes", "", _headings(groups), (block,), notes)


def by_size(
    inputs: Inputs, model_sizes: ReportSizes, marker: SignificanceMarks, published: Published = NO_PUBLISHED
) -> Table:
    """Table 4: a block a size, a row a method, marks where a method differs from the baseline."""
    groups = grouped(inputs.columns)
    sizes: list[Size | None] = [*model_sizes]
    if any(size is None for method in inputs.methods for _, size in method.cells):
        sizes.append(None)
    blocks = []
    for size in sizes:
        found = {column: marker.compare(inputs.methods, column, size) for column in inputs.columns}
        rows = []
        for method in inputs.methods:
            values = {column: method.value(column, size) for column in inputs.columns}
            entries = _marked(groups, _entries(groups, values), {c: f.get(method.label) for c, f in found.items()})
            # A method whose files name no size is not missing at one, nor is a method of sizes missing without.
            if (size is not None and _sized(method)) or any(entry.value is not None for entry in entries):
                rows.append(TableRow(method.label, entries, baseline=method is marker.baseline))
        blocks.append(Block(model_sizes.name(size), (*mark_best(rows), *published.at_size(groups, size))))
    notes = marker.notes()
    if marker.tests and any(group.averaged for group in groups):
        notes.append("Averages are not tested: they have no number of queries or pairs.")
    every = [row for block in blocks for row in block.rows]
    notes += _missing(every, "An average over data sets") + published.notes(every, inputs.columns)
    return Table("by_size", "Every size", "size", _headings(groups), tuple(blocks), notes)


def ablation(inputs: Inputs, model_sizes: ReportSizes, published: Published = NO_PUBLISHED) -> Table:
    """Tables 2 and 3: a block a data set (or a measure's average over them), sizes as columns, their mean last."""
    blocks = []
    for group in grouped(inputs.columns):
        for column in [*group.columns, *([Column(AVERAGE, group.measure)] if group.averaged else [])]:
            series = [
                (method, [figure(method, group, column, size) for size in model_sizes]) for method in inputs.methods
            ]
            rows = [
                TableRow(method.label, (*map(Entry, values), Entry(mean(values))))
                for method, values in series
                if any(value is not None for value in values)
            ]
            if rows:
                title = f"{column.dataset} {measure_name(column.measure)}"
                blocks.append(Block(title, (*mark_best(rows), *published.over_sizes(group, column, model_sizes))))
    headings = (*(Heading(model_sizes.name(size)) for size in model_sizes), Heading(AVERAGE, average=True))
    every = [row for block in blocks for row in block.rows]
    notes = _missing(every, "A mean over sizes or data sets") + published.notes(every, inputs.columns)
    return Table("ablation", "Sizes side by side", "data set", headings, tuple(blocks), notes)


def figure(method: MethodResults, group: ColumnGroup, column: Column, size: Size | None) -> float | None:
    """A method's figure for a column of the group or, for the column named Average, over all of them."""
    if column.dataset == AVERAGE:
        return mean([method.value(one, size) for one in group.columns])
    return method.value(column, size)


def _sized(method: MethodResults) -> bool:
    return any(size is not None for _, size in method.cells)


def _headings(groups: Sequence[ColumnGroup]) -> tuple[Heading, ...]:
    found = []
    for group in groups:
        found += [Heading(column.dataset, measure_name(group.measure)) for column in group.columns]
        if group.averaged:
            found.append(Heading(AVERAGE, measure_name(group.measure), average=True))
    return tuple(found)


def _entries(groups: Sequence[ColumnGroup], values: dict[Column, float | None]) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for group in groups:
        known = [values[column] for column in group.columns]
        found += map(Entry, known)
        if group.averaged:
            found.append(Entry(mean(known)))
    return tuple(found)


def _marked(
    groups: Sequence[ColumnGroup], entries: Sequence[Entry], comparisons: Mapping[Column, CellComparison | None]
) -> tuple[Entry, ...]:
    """The entries with their comparisons; averages have none."""
    marked, place = list(entries), 0
    for group in groups:
        for column in group.columns:
            marked[place] = replace(marked[place], comparison=comparisons[column])
            place += 1
        place += group.averaged
    return tuple(marked)


def _missing(rows: Sequence[TableRow], what: str) -> list[str]:
    if all(entry.value is not None for row in rows if not row.published for entry in row.entries):
        return []
    return [f"{DASH} was not measured. {what} in which a figure is missing is missing too."]
