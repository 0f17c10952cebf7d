"""Quality against cost at every size, before and after training, as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.demo.table import Row, rate
from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURE = "nDCG@10"
_PADS = {
    f"figure.constrained_layout.{name}": value for name, value in (("w_pad", 0.1), ("h_pad", 0.1), ("wspace", 0.06))
}


@dataclass(frozen=True)
class Theme:
    """Colours; before and after are from Okabe and Ito's set, which the colour-blind tell apart."""

    paper: str
    ink: str
    muted: str
    grid: str
    before: str
    after: str


LIGHT = Theme("#ffffff", "#1c2430", "#5b6675", "#e4e8ee", "#d55e00", "#0072b2")
DARK = Theme("#171c24", "#e8edf4", "#9aa7b8", "#2b3442", "#e69f00", "#56b4e9")


def import_matplotlib() -> None:
    """Raise a UserError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "the demonstration's figure needs matplotlib, which is not installed",
            'pip install "starbucks_retrieval[demo]"',
        ) from None


def write_figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """figure.png and figure.svg: both panels side by side."""
    paths = [folder / "figure.png", folder / "figure.svg"]
    for path in paths:
        path.write_bytes(_drawn([quality_panel, speed_panel], rows, LIGHT, (10.2, 4.4), path.suffix[1:]))
    return paths


def svg(panel: Callable[[Axes, Sequence[Row], Theme], None], rows: Sequence[Row], theme: Theme) -> bytes:
    """One panel by itself, small enough to be read on a phone."""
    return _drawn([panel], rows, theme, (5.2, 4.0), "svg")


def _drawn(panels: Sequence[Any], rows: Sequence[Row], theme: Theme, inches: tuple[float, float], kind: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    style = {"font.family": "sans-serif", "font.size": 11, "svg.hashsalt": "starbucks", **_PADS}
    with matplotlib.rc_context(style):
        figure: Figure = Figure(figsize=inches, facecolor=theme.paper, layout="constrained")
        ratios = [1.75, 1] if len(panels) == 2 else [1]
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False, width_ratios=ratios)[0], panels):
            axes.set_facecolor(theme.paper)
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(theme.grid)
            axes.tick_params(colors=theme.muted, length=0)
            panel(axes, rows, theme)
        out = io.BytesIO()
        # No date in the file: equal figures give equal bytes.
        figure.savefig(out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def quality_panel(axes: Axes, rows: Sequence[Row], theme: Theme) -> None:
    """nDCG@10 over bytes per passage: one line before training, one after."""
    costs = [row.bytes_per_passage for row in rows]
    before, after = [row.before[MEASURE] for row in rows], [row.after[MEASURE] for row in rows]
    axes.fill_between(costs, before, after, color=theme.after, alpha=0.08, linewidth=0)
    line: dict[str, Any] = {"linewidth": 2.2, "markersize": 7, "markeredgecolor": theme.paper, "clip_on": False}
    axes.plot(costs, after, "o-", color=theme.after, label="after training for all sizes", zorder=3, **line)
    axes.plot(costs, before, "s--", color=theme.before, label="before: the backbone, cut", zorder=2, **line)
    for row, cost, high in zip(rows, costs, map(max, before, after)):
        axes.annotate(
            row.size, (cost, high), (-7, 9), textcoords="offset points", ha="center", color=theme.ink, fontsize=10
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(costs, [str(cost) for cost in costs])
    axes.minorticks_off()
    axes.margins(x=0.08)
    top = max(*before, *after)
    axes.set_ylim(0, top * 1.16 if top else 1)
    axes.grid(axis="y", color=theme.grid)
    axes.set_axisbelow(True)
    axes.set_xlabel("bytes per passage (logarithmic)", color=theme.muted)
    axes.set_title(f"{MEASURE} at each size (layer:dim)", loc="left", color=theme.ink, fontsize=12, pad=12)
    axes.legend(loc="upper left", frameon=False, labelcolor=theme.ink, fontsize=10)


def speed_panel(axes: Axes, rows: Sequence[Row], theme: Theme) -> None:
    """Texts encoded per second, one bar a size."""
    values = [row.texts_per_second for row in rows]
    places = range(len(rows))
    axes.barh(places, values, height=0.62, color=theme.after)
    for place, value in zip(places, values):
        axes.annotate(
            rate(value), (value, place), (5, 0), textcoords="offset points", va="center", color=theme.ink, fontsize=10
        )
    axes.set_yticks(places, [row.size for row in rows])
    axes.tick_params(axis="y", labelcolor=theme.ink)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(0, max(values) * 1.2)
    axes.set_title("texts encoded per second", loc="left", color=theme.ink, fontsize=12, pad=12)
