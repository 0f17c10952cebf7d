"""Figures of effectiveness: over the sizes (Starbucks, Fig. 1), over the grid, and differences of grids (Fig. 3 to 9)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.report.columns import (
    AVERAGE,
    Column,
    ColumnGroup,
    MethodResults,
    ReportSizes,
    group_columns,
    is_grid,
    mean_or_none,
    measure_name,
)
from starbucks_retrieval.report.drawing import (
    GRID,
    INK,
    MUTED,
    Drawing,
    Panel,
    SeriesStyle,
    drawing_of,
    line_options,
    series_styles,
)
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.layouts import column_score
from starbucks_retrieval.report.published import NO_PUBLISHED, Published
from starbucks_retrieval.report.tables import DIGITS
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_PANELS = 3  # data sets of a measure that have a panel each; more of them share a panel of their average
_MAX_KPIS = 6
_MAX_NUMBERS = 12  # rows or columns up to which a heat map shows numbers


def panel_columns(inputs: ReportInputs) -> list[tuple[ColumnGroup, Column]]:
    """Return the columns that have a panel each.

    Returns:
        Each column with the group of its measure. A measure with up to three data sets has a panel for each of them;
        one with more has a single panel of their average, a column whose data set is `AVERAGE`.
    """
    found = []
    for group in group_columns(inputs.columns):
        shown = [Column(AVERAGE, group.measure)] if len(group.columns) > _MAX_PANELS else group.columns
        found += [(group, column) for column in shown]
    return found


def panel_title(group: ColumnGroup, column: Column) -> str:
    """Return the title of a panel.

    Args:
        group: All columns of the measure.
        column: The column of the panel: one of the group, or its average.

    Example:
        >>> group = ColumnGroup("spearman", (Column("STS-B", "spearman"), Column("SICK-R", "spearman")))
        >>> panel_title(group, group.columns[0]), panel_title(group, Column(AVERAGE, "spearman"))
        ('STS-B Spearman', 'Spearman, average of 2 sets')
    """
    if column.dataset == AVERAGE:
        return f"{measure_name(column.measure)}, average of {len(group.columns)} sets"
    return f"{column.dataset} {measure_name(column.measure)}"


def effectiveness_figure(
    inputs: ReportInputs, model_sizes: ReportSizes, published: Published = NO_PUBLISHED
) -> Drawing | None:
    """Draw one line over the sizes for each method, as Fig. 1 does; missing sizes leave gaps.

    Returns:
        The figure; None if no method has two sizes.
    """
    methods = replace(published, ablations=())
    rows = {column: methods.over_sizes(group, column, model_sizes) for group, column in panel_columns(inputs)}
    printed = list(dict.fromkeys(row.name for found in rows.values() for row in found))
    known = series_styles([method.label for method in inputs.methods], printed)
    panels = []
    for group, column in panel_columns(inputs):
        series = {
            method.label: [column_score(method, group, column, size) for size in model_sizes]
            for method in inputs.methods
        }
        series |= {row.name: [cell.value for cell in row.cells[:-1]] for row in rows[column]}
        series = {label: values for label, values in series.items() if any(value is not None for value in values)}
        if len(model_sizes) > 1 and series:
            title = panel_title(group, column)
            alt = f"{title} over sizes: {', '.join(series)}"
            panels.append(Panel(title, alt, _lines(series, known, model_sizes), tuple(series)))
    notes = ["Published lines may leave a panel, since its scale fits the measured scores."] if printed else []
    return drawing_of("effectiveness", "Effectiveness against size", panels, known, notes, (4.3, 3.3))


def _lines(series: dict[str, list[float | None]], known: dict[str, SeriesStyle], model_sizes: ReportSizes) -> Any:
    def draw(axes: Axes) -> None:
        for label, values in reversed(series.items()):
            found = [math.nan if value is None else value for value in values]
            printed = known[label].published
            axes.plot(
                range(len(found)), found, clip_on=printed, zorder=2 if printed else 3, **line_options(known[label])
            )
        names = [model_sizes.name(size).replace(" ", "\n") for size in model_sizes]
        axes.set_xticks(range(len(names)), names, fontsize=9.5)
        axes.margins(x=0.04)
        axes.set_ylim(*_limits(series, known))
        axes.grid(axis="y", color=GRID)

    return draw


def _limits(series: dict[str, list[float | None]], known: dict[str, SeriesStyle]) -> tuple[float, float]:
    """Return the ends of the axis: all measured scores, and at most as much space again for published ones."""
    every = [value for values in series.values() for value in values if value is not None]
    measured = [v for label, values in series.items() if not known[label].published for v in values if v is not None]
    low, high = min(measured, default=min(every)), max(measured, default=max(every))
    span = max(high - low, 0.02)
    low, high = max(min(every), low - span / 2), min(max(every), high + span / 2)
    edge = 0.08 * max(high - low, 0.02)
    return low - edge, high + edge


def grid_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw a heat map of the scores at every layer and dim for each method and panel.

    Returns:
        The figure; None if nothing was measured on a grid.
    """
    panels = []
    for group, column in panel_columns(inputs):
        found = _grids(inputs, group, column)
        values = [value for cells in found.values() for value in cells.values()]
        for label, cells in found.items():
            title = f"{label}: {panel_title(group, column)}"
            panels.append(heat_panel(title, _by_layer_and_dim(cells), (min(values), max(values))))
    return drawing_of("grid_values", "The whole grid", panels, {}, [])


def grid_difference_figure(inputs: ReportInputs, baseline: MethodResults | None) -> Drawing | None:
    """Draw differences of two grids as Fig. 3 to 9 do, green where the first is better.

    Args:
        inputs: The scores.
        baseline: It is subtracted from every other grid. Without it, every other grid is subtracted from the first.

    Returns:
        The figure; None if there is only one grid.
    """
    panels = []
    for group, column in panel_columns(inputs):
        grids = _grids(inputs, group, column)
        first, *others = grids or [""]
        pairs = [(first, other) for other in others]
        if baseline is not None:
            pairs = [(label, baseline.label) for label in grids if baseline.label in grids and label != baseline.label]
        deltas = {}
        for one, other in pairs:
            common = sorted(grids[one].keys() & grids[other].keys())
            deltas[f"{one} − {other}"] = {size: grids[one][size] - grids[other][size] for size in common}
        top = max((abs(value) for cells in deltas.values() for value in cells.values()), default=0.0) or 1e-4
        for title, cells in deltas.items():
            if cells:
                title = f"{title}: {panel_title(group, column)}"
                panels.append(heat_panel(title, _by_layer_and_dim(cells), (-top, top), delta=True))
    notes = ["Green: the first is better; pink: the second. The scale is the same on both sides of zero."]
    return drawing_of("grid_deltas", "Where one grid is better than another", panels, {}, notes)


def _grids(inputs: ReportInputs, group: ColumnGroup, column: Column) -> dict[str, dict[Size, float]]:
    """Return {label: {size: score}} of the methods whose measured sizes are a grid."""
    grids = {}
    for method in inputs.methods:
        sizes = sorted({size for known in group.columns for size in method.sizes(known)})
        cells = {size: score for size in sizes if (score := column_score(method, group, column, size)) is not None}
        if is_grid(cells):
            grids[method.label] = cells
    return grids


def _by_layer_and_dim(cells: Mapping[Size, float]) -> dict[tuple[int, int], float]:
    return {(size.layer, size.dim): value for size, value in cells.items()}


def heat_panel(
    title: str,
    cells: Mapping[tuple[int, int], float],
    limits: tuple[float, float],
    names: tuple[str, str] = ("layer", "dimensions"),
    delta: bool = False,
) -> Panel:
    """Return a heat map.

    Args:
        title: Its title.
        cells: {(row, column): value}; missing cells are left open.
        limits: The values at the ends of the colours.
        names: The names of rows and columns.
        delta: Whether the values are differences.
    """

    def draw(axes: Axes) -> None:
        import matplotlib
        from matplotlib.colors import Normalize
        from matplotlib.patches import Rectangle

        rows, columns = (sorted({key[i] for key in cells}) for i in (0, 1))
        low, high = limits
        # Pink to green: like red to green, but colour-blind readers can distinguish them.
        colours = matplotlib.colormaps["PiYG" if delta else "YlGnBu"]
        scale = Normalize(low, high if high > low else low + 1e-4)
        numbers = len(rows) <= _MAX_NUMBERS and len(columns) <= _MAX_NUMBERS
        for (row, column), value in cells.items():
            x, y = columns.index(column), rows.index(row)
            fill = colours(scale(value))
            axes.add_patch(Rectangle((x, y), 0.97, 0.97, facecolor=fill, linewidth=0))
            if numbers:
                text = f"{value:+.3f}" if delta else f"{value:.3f}"
                dark = 0.2126 * fill[0] + 0.7152 * fill[1] + 0.0722 * fill[2] < 0.45
                shown = text.replace("0.", ".", 1).replace("-", "−")
                ink = "#fdfdfd" if dark else "#141414"
                axes.text(x + 0.485, y + 0.5, shown, ha="center", va="center", fontsize=8.5, color=ink)
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(rows), 0)
        axes.set_xticks([i + 0.485 for i in range(len(columns))], [str(one) for one in columns])
        axes.set_yticks([i + 0.485 for i in range(len(rows))], [str(one) for one in rows])
        axes.tick_params(labelcolor=INK)
        axes.set_xlabel(names[1], color=MUTED)
        axes.set_ylabel(names[0], color=MUTED)
        axes.spines[["left", "bottom"]].set_visible(False)

    return Panel(title, f"{title}: every {names[0]} and {names[1]}", draw)


@dataclass(frozen=True)
class Kpi:
    """One large number at the top of the page.

    Attributes:
        name: Data set and measure.
        value: The number as text.
        method: The method that it belongs to.
        details: A remark.
    """

    name: str
    value: str
    method: str
    details: str


def choose_kpis(inputs: ReportInputs, model_sizes: ReportSizes) -> list[Kpi]:
    """Return, for each data set or average, the method with the highest mean over the sizes.

    Args:
        inputs: The contents of the result files.
        model_sizes: The sizes of the mean. A method needs a score at each of them.

    Returns:
        Up to six large numbers, in the order of the panels; none if there are no sizes.
    """
    return list(_kpis(inputs, model_sizes))[:_MAX_KPIS] if len(model_sizes) else []


def _kpis(inputs: ReportInputs, model_sizes: ReportSizes) -> Iterator[Kpi]:
    small, large = model_sizes.sizes[0], model_sizes.sizes[-1]
    for group, column in panel_columns(inputs):
        means = []
        for method in inputs.methods:
            value = mean_or_none([column_score(method, group, column, size) for size in model_sizes])
            if value is not None:
                means.append((value, method))
        if not means:
            continue
        value, method = max(means, key=lambda pair: pair[0])
        kind = "mean" if len(means) == 1 else f"highest mean of {len(means)} methods"
        details = f"{kind} over {len(model_sizes)} sizes" if len(model_sizes) > 1 else f"at {small}"
        at_large, at_small = (column_score(method, group, column, size) for size in (large, small))
        if len(model_sizes) > 1 and at_large and at_small is not None and at_large > 0:
            details += f"; {at_small / at_large:.0%} of the largest size's figure is left at {small}"
        yield Kpi(panel_title(group, column), f"{value:.{DIGITS}f}", method.label, details)
