"""The tables of a paper: measured scores, and below each row the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starbucks_retrieval.cli.tables import escape_markdown
from starbucks_retrieval.metrics.measures import measure_of
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.columns import AVERAGE, Column, MethodResults, mean_or_none, measure_name
from starbucks_retrieval.report.layouts import mark_best
from starbucks_retrieval.report.tables import Block, CellComparison, Heading, Table, TableCell, TableRow
from starbucks_retrieval.reproduce.comparisons import compare_rows
from starbucks_retrieval.reproduce.plan import Plan
from starbucks_retrieval.reproduce.results import RowScores
from starbucks_retrieval.reproduce.scaling import rescale
from starbucks_retrieval.reproduce.schema import MEAN, Row, Score
from starbucks_retrieval.sizes import Size


def shown_columns(plan: Plan) -> list[Column]:
    """Return the set and the measure of every column; a set that nothing is known of has the measure of the others."""
    found: list[str | None] = []
    for column in plan.table.columns:
        known = plan.scale.sets.get(column.set)
        published = [score.measure for score in plan.table.published if score.set == column.set]
        found.append(column.measure or (known.measures[0] if known else published[0] if published else None))
    others = next(filter(None, found), "nDCG@10")
    return [Column(column.set, measure_of(one or others)) for column, one in zip(plan.table.columns, found)]


def make_table(plan: Plan, name: str, scores: Mapping[str, RowScores], missing: Mapping[tuple[str, str], str]) -> Table:
    """Return the table in the layout of its file.

    Args:
        plan: The plan.
        name: The stem of its files.
        scores: The measured scores by row.
        missing: Why rows and sets have no scores.
    """
    return _Maker(plan, scores).make(name, missing)


class _Maker:
    def __init__(self, plan: Plan, scores: Mapping[str, RowScores]) -> None:
        self.plan, self.scores = plan, scores
        self.columns = shown_columns(plan)
        self.lacking = [
            name for name in dict.fromkeys(one.dataset for one in self.columns) if name not in plan.scale.sets
        ]
        self.rows = plan.table.rows
        self.methods = {row.name: _method(row, scores.get(row.name)) for row in self.rows}
        self.tests = compare_rows(plan.table, scores, self.columns, [*plan.sizes])
        self.published = {
            (score.row, score.set, measure_of(score.measure), _scaled(score, plan)): score
            for score in plan.table.published
        }

    def make(self, name: str, missing: Mapping[tuple[str, str], str]) -> Table:
        sizes: list[Size] = [*self.plan.sizes]
        layout = self.plan.table.layout
        headings = [Heading(column.dataset, measure_name(column.measure)) for column in self._with_average()]
        corner = {"averages": "", "by_size": "size"}.get(layout, "set")
        if layout == "averages":
            blocks = [self._by_set("", sizes)]
        elif layout == "by_size":
            blocks = [self._by_set(str(size), [size]) for size in sizes]
        elif layout in ("sizes", "lines"):
            blocks = [self._by_size(column, sizes) for column in self._with_average()]
            headings = [*(Heading(str(size)) for size in sizes), Heading(AVERAGE, average=True)]
        else:
            dims = sorted({size.dim for size in sizes})
            blocks = self._by_layer(sorted({size.layer for size in sizes}), dims)
            headings = [Heading(f"{dim} dims") for dim in dims]
        title = f"{self.plan.table.title} ({self.plan.table.source})"
        kept = tuple(block for block in blocks if block.rows)
        return Table(name, title, corner, tuple(headings), kept, self._notes(missing, layout == "averages"))

    def _by_layer(self, layers: Sequence[int], dims: Sequence[int]) -> list[Block]:
        """Return blocks with a column for each dim: of every layer, or of every row."""
        layout, baseline = self.plan.table.layout, self.plan.table.baseline
        blocks = []
        for column in self._with_average()[-1:] if layout == "panels" else self._with_average():
            place = f"{column.dataset} {measure_name(column.measure)}"
            by_row = {row.name: self._layers(row, column, layers, dims) for row in self.rows}
            if layout == "panels":
                for layer in layers:
                    rows = [self._rows(row, *by_row[row.name][layer]) for row in self.rows]
                    blocks.append(Block(f"layer {layer}, {place}", mark_best([one for pair in rows for one in pair])))
                continue
            for row in self.rows:
                label, values = row.label or row.name, {n: by_row[row.name][n][0] for n in layers}
                if layout == "heat":
                    blocks.append(_layer_block(f"{label}, {place}", values))
                elif not self._has_model_of_baseline(row):
                    less = {n: _less(values[n], by_row[baseline][n][0]) for n in layers}
                    blocks.append(_layer_block(f"{label} less {baseline}, {place}", less))
                deepest = _method(row, self.scores.get(row.name), layers[-1])  # of rows measured with `asymmetric`
                if any(known == column for known, _ in deepest.cells):
                    values = {n: [TableCell(deepest.value(column, Size(n, dim))) for dim in dims] for n in layers}
                    blocks.append(_layer_block(f"{label}, {place}, passages of layer {layers[-1]}", values))
        return blocks

    def _has_model_of_baseline(self, row: Row) -> bool:
        """Return whether a row measures the baseline's model, so that the differences are zero."""
        other = next(other for other in self.rows if other.name == self.plan.table.baseline)
        return all(getattr(row, part) == getattr(other, part) for part in ("start", "pretrain", "fit", "train", "each"))

    def _layers(
        self, row: Row, column: Column, layers: Sequence[int], dims: Sequence[int]
    ) -> dict[int, tuple[list[TableCell], list[Score | None]]]:
        """Return the measured and published scores of a row over the dims, by layer."""
        found = {}
        for layer in layers:
            sizes = [Size(layer, dim) for dim in dims]
            cells = [TableCell(self._value(row, column, size)) for size in sizes]
            found[layer] = cells, [self._published(row, column, str(size)) for size in sizes]
        return found

    def _with_average(self) -> list[Column]:
        """Return the columns, and a column of averages for a measure of several sets."""
        measures = dict.fromkeys(column.measure for column in self.columns)
        found = []
        for measure in measures:
            same = [column for column in self.columns if column.measure == measure]
            found += [*same, *([Column(AVERAGE, measure)] if len(same) > 1 else [])]
        return found

    def _by_set(self, title: str, sizes: Sequence[Size]) -> Block:
        """Return a block with a column for each set; of several sizes, the mean."""
        at = str(sizes[0]) if len(sizes) == 1 and title else MEAN
        only = sizes[0] if at != MEAN else None
        rows = []
        for row in self.rows:
            cells = []
            for column in self._with_average():
                value = mean_or_none([self._value(row, column, size) for size in sizes])
                cells.append(TableCell(value, comparison=self._comparison(row, column, only)))
            published = [self._published(row, column, at) for column in self._with_average()]
            rows += self._rows(row, cells, published)
        return Block(title, mark_best(rows))

    def _by_size(self, column: Column, sizes: Sequence[Size]) -> Block:
        """Return a block with a column for each size and their mean."""
        rows = []
        for row in self.rows:
            values = [self._value(row, column, size) for size in sizes]
            tests = [self._comparison(row, column, size) for size in sizes]
            cells = [TableCell(value, comparison=test) for value, test in zip(values, tests)]
            cells.append(TableCell(mean_or_none(values)))
            published = [self._published(row, column, at) for at in (*map(str, sizes), MEAN)]
            rows += self._rows(row, cells, published)
        return Block(f"{column.dataset} {measure_name(column.measure)}", mark_best(rows))

    def _rows(self, row: Row, cells: Sequence[TableCell], published: Sequence[Score | None]) -> list[TableRow]:
        """Return the measured row, and the published one if there is any score."""
        label = row.label or row.name
        note = "" if any(cell.value is not None for cell in cells) else " (not run)"
        found = [TableRow(label, tuple(cells), baseline=row.name == self.plan.table.baseline, note=note)]
        if any(published):
            printed = [TableCell(score.value if score else None) for score in published]
            found.append(TableRow(label, tuple(printed), published=True))
        return found

    def _value(self, row: Row, column: Column, size: Size) -> float | None:
        method = self.methods[row.name]
        if column.dataset != AVERAGE:
            return method.value(column, size)
        same = [one for one in self.columns if one.measure == column.measure and one.dataset not in self.lacking]
        return mean_or_none([method.value(one, size) for one in same])

    def _comparison(self, row: Row, column: Column, size: Size | None) -> CellComparison | None:
        """Return the test of a score against the baseline's; None for a mean over sizes or sets, and without a test."""
        return self.tests.found.get((column, size), {}).get(row.label or row.name) if size else None

    def _published(self, row: Row, column: Column, at: str) -> Score | None:
        return self.published.get((row.name, column.dataset, column.measure, at))

    def _notes(self, missing: Mapping[tuple[str, str], str], averages: bool) -> list[str]:
        notes = [f"Measured at this scale: {self.plan.about}."]
        if self.published:
            sources = dict.fromkeys(score.source for score in self.plan.table.published)
            full = self.plan.table.full
            notes.append(
                f"Rows marked published are from {'; '.join(sources)}, and were not measured here. A size of this backbone, "
                f"{self.plan.scale.full}, stands for the same part of the paper's {full}."
            )
        if self.lacking:
            notes.append(
                f"Averages of measured scores are without {', '.join(self.lacking)}, which this scale does not have."
            )
        if self.plan.table.baseline and not averages:
            notes += self.tests.notes
        seeds = {count for row in self.scores.values() for count in row.seeds.values()}
        if max(seeds, default=1) > 1:
            spread = max((value for row in self.scores.values() for value in row.spread.values()), default=0.0)
            notes.append(
                f"Scores are means over {min(seeds)} to {max(seeds)} seeds; their standard deviation is at most {spread:.4f}."
            )
        reasons: dict[str, list[str]] = {}
        for (row, name), reason in missing.items():
            reasons.setdefault(reason, []).append(f"{row} on {name}" if name else row)
        return notes + [f"Not run ({reason}): {', '.join(rows)}." for reason, rows in reasons.items()]


def to_markdown(table: Table, verdicts: Sequence[object]) -> str:
    """Return a table and the verdicts about the claims as Markdown."""
    lines = [table.to_markdown()]
    if verdicts:
        lines += ["", "### Claims", "", *(f"- {escape_markdown(str(verdict))}" for verdict in verdicts), ""]
    return "\n".join(lines)


def _layer_block(title: str, values: Mapping[int, Sequence[TableCell]]) -> Block:
    return Block(title, tuple(TableRow(f"layer {layer}", tuple(cells)) for layer, cells in values.items()))


def _less(cells: Sequence[TableCell], others: Sequence[TableCell]) -> list[TableCell]:
    pairs = ((one.value, other.value) for one, other in zip(cells, others, strict=True))
    return [TableCell(None if a is None or b is None else a - b) for a, b in pairs]


def _method(row: Row, scores: RowScores | None, passage_layer: int | None = None) -> MethodResults:
    """Return the scores of queries and passages of one size, or of passages at the layer that is named."""
    cells: dict[tuple[Column, Size | None], Cell] = {}
    for (name, measure, size, passage_size), cell in (scores.cells if scores else {}).items():
        same = passage_layer is None and passage_size in (None, size)
        if same or (passage_size is not None and passage_size.layer == passage_layer):
            cells[Column(name, measure), size] = cell
    return MethodResults(row.label or row.name, cells)


def _scaled(score: Score, plan: Plan) -> str:
    """Return the size of a published score, in terms of the scale's backbone."""
    if score.size == MEAN:
        return MEAN
    found = rescale(Size.parse(score.size), plan.table.full, plan.scale.full)
    return str(found) if found else ""
