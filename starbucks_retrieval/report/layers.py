"""Scores by layer: a panel for each, and queries at one layer against passages at another (arXiv 2411.17299, Fig. 1 to 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.report.columns import Column, ColumnGroup, MethodResults, measure_name
from starbucks_retrieval.report.drawing import (
    GRID,
    MUTED,
    Drawing,
    Panel,
    SeriesStyle,
    drawing_of,
    line_options,
    series_styles,
)
from starbucks_retrieval.report.figures import heat_panel, panel_columns, panel_title
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.layouts import column_score
from starbucks_retrieval.report.tables import Block, Heading, Table, TableCell, TableRow
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def layer_pairs_table(inputs: ReportInputs) -> Table | None:
    """Return a table with one matrix of query layers and passage layers for each method, data set, measure and dim.

    Scores of one layer for both come from the cells of that size.

    Args:
        inputs: The scores.

    Returns:
        The table; None where no method has several pairs of layers at one dim.
    """
    found = [(method, column, dim) for method in inputs.methods for column, dim in _matrices(method)]
    layers = sorted({other.layer for method in inputs.methods for _, _, other in method.pairs})
    if not found:
        return None
    blocks = []
    for method, column, dim in found:
        title = f"{method.label}, {column.dataset} {measure_name(column.measure)}, dim {dim}"
        sides = sorted({size.layer for known, size, _ in method.pairs if known == column and size.dim == dim})
        rows = [
            TableRow(f"layer {side}", tuple(TableCell(_score(method, column, side, layer, dim)) for layer in layers))
            for side in sides
        ]
        blocks.append(Block(title, tuple(rows)))
    headings = tuple(Heading(f"layer {layer}", "passages") for layer in layers)
    notes = [
        "Queries are encoded at the layer of the row, passages at that of the column; both have the dim of the block."
    ]
    name, title = "layer_pairs", "Queries at one layer, passages at another"
    return Table(name, title, "method and data set", headings, tuple(blocks), notes, rows="queries")


def layer_pairs_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw the matrices of `layer_pairs_table` as heat maps, at the smallest, the middle and the largest dim.

    The panels of one data set and measure have the same scale.

    Args:
        inputs: The scores.

    Returns:
        The figure; None where there is no such table.
    """
    panels = []
    columns = dict.fromkeys(column for method in inputs.methods for column, _ in _matrices(method))
    for column in columns:
        matrices = {}
        for method in inputs.methods:
            dims = sorted(dim for known, dim in _matrices(method) if known == column)
            for dim in dict.fromkeys(dims[i] for i in (0, len(dims) // 2, -1) if dims):
                title = f"{method.label}: {column.dataset} {measure_name(column.measure)}, dim {dim}"
                matrices[title] = _matrix(method, column, dim)
        values = [value for matrix in matrices.values() for value in matrix.values()]
        names = ("layer of the queries", "layer of the passages")
        limits = (min(values), max(values)) if values else (0.0, 0.0)
        panels += [heat_panel(title, matrix, limits, names) for title, matrix in matrices.items() if matrix]
    notes = ["The table has all dims."]
    return drawing_of("layer_pairs", "Queries at one layer, passages at another", panels, {}, notes)


def _matrix(method: MethodResults, column: Column, dim: int) -> dict[tuple[int, int], float]:
    """Return {(layer of the queries, layer of the passages): score}."""
    layers = {layer for known, *sizes in method.pairs if known == column for layer in (one.layer for one in sizes)}
    scores = {
        (side, layer): _score(method, column, side, layer, dim) for side in sorted(layers) for layer in sorted(layers)
    }
    return {pair: score for pair, score in scores.items() if score is not None}


def _matrices(method: MethodResults) -> list[tuple[Column, int]]:
    return list(dict.fromkeys((column, size.dim) for column, size, _ in method.pairs))


def _score(method: MethodResults, column: Column, side: int, layer: int, dim: int) -> float | None:
    size, other = Size(side, dim), Size(layer, dim)
    found = method.pairs.get((column, size, other))
    if found is None and side == layer:
        return method.value(column, size)
    return found if found is not None and math.isfinite(found) else None


_Lines = dict[str, dict[int, float]]  # method → dim → score


def layers_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw the scores over the dims in one panel for each layer that several methods have at several dims.

    The panels of one data set and measure have the same scale.

    Returns:
        The figure; None if no layer was measured so, as with one method or with one dim a layer.
    """
    known = series_styles([method.label for method in inputs.methods], [])
    panels = []
    for group, column in panel_columns(inputs):
        by_layer = _by_layer(inputs, group, column)
        values = [value for lines in by_layer.values() for line in lines.values() for value in line.values()]
        for layer, lines in by_layer.items():
            title = f"layer {layer}: {panel_title(group, column)}"
            limits = min(values), max(values)
            panels.append(
                Panel(title, f"{title} over dimensions: {', '.join(lines)}", _draw(lines, known, limits), tuple(lines))
            )
    return drawing_of("layers", "Layer by layer", panels, known, [], (4.3, 2.9))


def _by_layer(inputs: ReportInputs, group: ColumnGroup, column: Column) -> dict[int, _Lines]:
    """Return the lines of each layer that at least two methods have at two or more dims."""
    found: dict[int, _Lines] = {}
    for method in inputs.methods:
        for size in sorted({size for one in group.columns for size in method.sizes(one)}):
            value = column_score(method, group, column, size)
            if value is not None:
                found.setdefault(size.layer, {}).setdefault(method.label, {})[size.dim] = value
    return {layer: lines for layer, lines in sorted(found.items()) if sum(len(line) > 1 for line in lines.values()) > 1}


def _draw(lines: _Lines, known: dict[str, SeriesStyle], limits: tuple[float, float]) -> Any:
    def draw(axes: Axes) -> None:
        dims = sorted({dim for line in lines.values() for dim in line})
        for label, line in reversed(lines.items()):
            axes.plot(range(len(dims)), [line.get(dim, math.nan) for dim in dims], **line_options(known[label]))
        edge = 0.08 * max(limits[1] - limits[0], 0.02)
        axes.set_ylim(limits[0] - edge, limits[1] + edge)
        axes.set_xticks(range(len(dims)), [str(dim) for dim in dims])
        axes.set_xlabel("dimensions", color=MUTED)
        axes.grid(axis="y", color=GRID)

    return draw
