"""How figures are drawn: panels side by side as PNG and SVG files, or one by one for the page, in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, MUTED, GRID = "#ffffff", "#1c2430", "#5b6675", "#e0e5ec"
# Okabe and Ito's colours, which the colour-blind tell apart, with yellow darkened for white paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7b4fa3", "#6b7280")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
# What the page calls these colours; it has its own values of them for dark screens.
VARIABLES = {PAPER: "card", INK: "ink", MUTED: "muted", GRID: "line"} | {c: f"m{i}" for i, c in enumerate(COLOURS)}
_DPI = 160


@dataclass(frozen=True)
class SeriesStyle:
    """Line colour and marker of one method; published ones are hollow, thin and dashed."""

    colour: str
    marker: str
    published: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot: `draw` fills the axes, `alt` says in words what is shown."""

    title: str
    alt: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class Drawing:
    """A figure: `name` is the stem of its files; `legend` holds the look of each label."""

    name: str
    title: str
    panels: list[Panel]
    inches: tuple[float, float] = (5.2, 3.9)  # of a panel
    legend: dict[str, SeriesStyle] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def across(self) -> int:
        """Panels side by side: three narrow ones, or two."""
        return 3 if self.inches[0] < 5 else 2


def import_matplotlib() -> None:
    """Raise a UserError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "figures need matplotlib, which is not installed", "pip install matplotlib, or pass --no_figures"
        ) from None


def series_styles(labels: Sequence[str], published: Sequence[str] = ()) -> dict[str, SeriesStyle]:
    """A look for every label; they repeat after eight."""
    found = {}
    for place, label in enumerate([*labels, *published]):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        found[label] = SeriesStyle(colour, marker, label in published)
    return found


def image(drawing: Drawing, kind: str) -> bytes:
    """All panels and the legend in one file, `kind` png or svg. Equal figures give equal bytes."""
    columns = min(len(drawing.panels), drawing.across)
    rows = -(-len(drawing.panels) // columns)
    size = columns * drawing.inches[0], rows * drawing.inches[1] + 0.35 * bool(drawing.legend)
    return _drawn(drawing.panels, (rows, columns), size, kind, drawing.legend)


def inline(panel: Panel, inches: tuple[float, float], prefix: str) -> str:
    """One panel as an svg element for the page: its colours are the page's, its ids start with `prefix`."""
    text = _drawn([panel], (1, 1), inches, "svg", {}, text=True).decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = (
        re.sub(r'\s(xmlns(:\w+)?|version|width|height)="[^"]*"', "", text[: text.index(">")]) + text[text.index(">") :]
    )
    text = text.replace("xlink:href=", "href=")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.strip()


def _drawn(
    panels: Sequence[Panel],
    shape: tuple[int, int],
    inches: tuple[float, float],
    kind: str,
    legend: dict[str, SeriesStyle],
    text: bool = False,
) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[str, Any] = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10.5,
        "svg.hashsalt": "starbucks",
        "svg.fonttype": "none" if text else "path",
        "figure.constrained_layout.w_pad": 0.1,
        "figure.constrained_layout.h_pad": 0.1,
        "figure.constrained_layout.wspace": 0.05,
        "axes.unicode_minus": True,
        "path.simplify": False,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style, "backend": "agg"}):
        figure: Any = Figure(figsize=inches, facecolor="none" if text else PAPER, layout="constrained")
        FigureCanvasAgg(figure)
        places = list(figure.subplots(*shape, squeeze=False).flat)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(places, panels):
            _plain(axes)
            panel.draw(axes)
            if not text:
                axes.set_title(plain(panel.title), loc="left", color=INK, fontsize=11.5, pad=10)
        if legend:
            _legend(figure, legend)
        out = io.BytesIO()
        # No date in the file: equal figures give equal bytes.
        figure.savefig(out, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _plain(axes: Any) -> None:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(colors=MUTED, labelcolor=MUTED, length=0)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.set_axisbelow(True)


def _legend(figure: Any, legend: dict[str, SeriesStyle]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=plain(label), **line(look)) for label, look in legend.items()]
    figure.legend(
        handles=lines,
        loc="outside lower center",
        ncols=min(4, len(lines)),
        frameon=False,
        labelcolor=INK,
        fontsize=10,
    )


def line(look: SeriesStyle) -> dict[str, Any]:
    """How a method's line is drawn."""
    if look.published:
        hollow = {"markerfacecolor": PAPER, "markeredgecolor": look.colour, "markersize": 5, "markeredgewidth": 1.1}
        return {"color": look.colour, "marker": look.marker, "linestyle": (0, (4, 3)), "linewidth": 1.1, **hollow}
    solid = {"markersize": 6.5, "markeredgecolor": PAPER, "markeredgewidth": 0.9}
    return {"color": look.colour, "marker": look.marker, "linestyle": "-", "linewidth": 2.1, **solid}


def plain(text: str) -> str:
    """A label that matplotlib prints as it is, and does not read as mathematics or hide for its underscore."""
    shown = text.replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
