"""Figures of cost: latency over layers (2DMSE, Fig. 4), and the Pareto front of effectiveness over cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from starbucks_retrieval.report.columns import Cost, MethodResults
from starbucks_retrieval.report.drawing import (
    GRID,
    MUTED,
    PAPER,
    Drawing,
    Panel,
    SeriesStyle,
    annotate,
    drawing_of,
    line_options,
    series_styles,
)
from starbucks_retrieval.report.figures import panel_columns, panel_title
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.layouts import column_score
from starbucks_retrieval.sizes import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABEL_SPACE = (0.13, 0.07)  # width and height of a size's name, as fractions of the panel
_COSTS: tuple[tuple[str, str, Callable[[Cost], float | None]], ...] = (
    ("bytes", "bytes per passage (logarithmic)", lambda cost: cost.bytes_per_passage),
    ("milliseconds", "milliseconds per query (logarithmic)", lambda cost: cost.query_ms),
)


class _Point(NamedTuple):
    label: str
    size: Size
    cost: float
    quality: float


def latency_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw milliseconds over layers, at the largest dim of each layer, as 2DMSE's Fig. 4 does.

    Returns:
        The figure; None if nothing was timed.
    """
    known = series_styles([method.label for method in inputs.methods])
    panels = []
    for title, pick in (
        ("milliseconds per query, one at a time", lambda cost: cost.query_ms),
        ("milliseconds per passage, in batches", lambda cost: cost.passage_ms),
    ):
        series = {method.label: times for method in inputs.methods if len(times := _by_layer(method, pick)) > 1}
        if series:
            alt = f"{title}, over layers: {', '.join(series)}"
            panels.append(Panel(title, alt, _times(series, known), tuple(series)))
    one = len({label for panel in panels for label in panel.labels}) == 1
    notes = ["The numbers say how many times faster a layer is than the deepest one."] if one else []
    return drawing_of("latency", "Latency against layers", panels, known, notes)


def _by_layer(method: MethodResults, pick: Callable[[Cost], float | None]) -> dict[int, float]:
    by_size = sorted(method.costs.items())  # the largest dim of a layer comes last, and counts
    return {size.layer: value for size, cost in by_size if (value := pick(cost)) is not None}


def _times(series: dict[str, dict[int, float]], known: dict[str, SeriesStyle]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for label, times in series.items():
            layers = sorted(times)
            axes.plot(layers, [times[layer] for layer in layers], clip_on=False, zorder=3, **line_options(known[label]))
            if len(series) > 1:
                continue
            for layer in layers[:-1]:
                ratio = f"{times[layers[-1]] / times[layer]:.1f}×"
                annotate(axes, ratio, (layer, times[layer]), (0, 9), ha="center", fontsize=9.5)
        layers = sorted({layer for times in series.values() for layer in times})
        axes.set_xticks(layers, [str(layer) for layer in layers])
        axes.set_xlabel("layer", color=MUTED)
        axes.set_ylim(0, 1.1 * max(value for times in series.values() for value in times.values()))
        axes.grid(axis="y", color=GRID)

    return draw


def pareto_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw effectiveness over cost for every method and size that has both, and the Pareto front.

    Returns:
        The figure; None if no cost is known.
    """
    known = series_styles([method.label for method in inputs.methods])
    panels = []
    for group, column in panel_columns(inputs):
        for short, axis, pick in _COSTS:
            points = [
                _Point(method.label, size, cost, quality)
                for method in inputs.methods
                for size, record in sorted(method.costs.items())
                if (cost := pick(record)) is not None
                and (quality := column_score(method, group, column, size)) is not None
            ]
            if len({point.cost for point in points}) > 1:
                title, labels = f"{panel_title(group, column)} over {short}", tuple(point.label for point in points)
                panels.append(Panel(title, f"{title}, and the front", _cloud(points, axis, known), labels))
    notes = ["The line is the Pareto front: no other measured size is as cheap and as good."]
    return drawing_of("pareto", "Quality against cost", panels, known, notes)


def _cloud(points: list[_Point], axis: str, known: dict[str, SeriesStyle]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        best = [points[i] for i in cheapest_best([(point.cost, point.quality) for point in points])]
        costs, qualities = zip(*((point.cost, point.quality) for point in best))
        axes.step(costs, qualities, where="post", color=MUTED, linewidth=1.2, zorder=2)
        for label in dict.fromkeys(point.label for point in points):
            style = known[label]
            for chosen, on_front in (([p for p in points if p not in best], False), (best, True)):
                shown = [point for point in chosen if point.label == label]
                axes.scatter(
                    [point.cost for point in shown],
                    [point.quality for point in shown],
                    s=52 if on_front else 26,
                    color=style.colour,
                    marker=style.marker,
                    alpha=1.0 if on_front else 0.4,
                    edgecolors=PAPER,
                    linewidths=0.8,
                    zorder=4 if on_front else 3,
                )
        axes.set_xscale("log")
        ticks = _ticks(sorted({point.cost for point in points}))
        axes.set_xticks(ticks, [f"{tick:.3g}" if tick < 100 else f"{tick:.0f}" for tick in ticks])
        axes.minorticks_off()
        axes.margins(x=0.12, y=0.1)
        axes.set_xlabel(axis, color=MUTED)
        axes.grid(axis="y", color=GRID)
        for point in _separated(best):
            annotate(axes, str(point.size), (point.cost, point.quality), (-3, 7), ha="right", fontsize=9)

    return draw


def cheapest_best(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the (cost, quality) points on the Pareto front, by rising cost.

    No other point is both as cheap and as good as one of these. Of equal points the first is kept.

    Example:
        >>> cheapest_best([(1.0, 0.5), (2.0, 0.4), (2.0, 0.6)])
        [0, 2]
    """
    best, kept = -math.inf, []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[i][1] > best:
            best = points[i][1]
            kept.append(i)
    return kept


def _separated(best: list[_Point]) -> list[_Point]:
    """Return the points of the front whose names do not overlap, the best first; `best` is sorted by cost."""
    if len(best) < 2:
        return best
    width = math.log(best[-1].cost / best[0].cost) or 1.0
    height = best[-1].quality - best[0].quality
    kept = [best[-1]]
    for point in reversed(best[:-1]):
        left = math.log(kept[-1].cost / point.cost) / width
        below = (kept[-1].quality - point.quality) / height
        if left > _LABEL_SPACE[0] or below > _LABEL_SPACE[1]:
            kept.append(point)
    return kept


def _ticks(costs: list[float], at_most: int = 8) -> list[float]:
    """Return costs of the points, far enough from each other on a logarithmic axis that their labels do not overlap."""
    kept: list[float] = []
    ratio = (costs[-1] / costs[0]) ** (1 / at_most)
    for cost in costs:
        if not kept or cost >= kept[-1] * ratio * 0.999:
            kept.append(cost)
    return kept
