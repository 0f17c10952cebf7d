"""Small multiples: a panel for each layer, a line over the dims for each method (arXiv 2411.17299, Fig. 1 to 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.report.columns import Column, ColumnGroup
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
from starbucks_retrieval.report.figures import panel_columns, panel_title
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.layouts import column_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
