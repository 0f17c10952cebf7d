"""Figures as PNG and SVG files, and panel by panel as SVG in the colours of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, MUTED, GRID = "#ffffff", "#1c2430", "#5b6675", "#e0e5ec"
# Okabe and Ito's colours, which the colour-blind tell apart, with yellow darkened for white paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7b4fa3", "#6b7280")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
# The CSS variables of these colours; the page has other values of them for dark screens.
VARIABLES = {PAPER: "card", INK: "ink", MUTED: "muted", GRID: "line"} | {c: f"m{i}" for i, c in enumerate(COLOURS)}
_DPI = 160
_LEGEND_ROW = 0.22  # inches of a further row of the legend


@dataclass(frozen=True)
class SeriesStyle:
    """The style of the line of one method.

    Attributes:
        colour: Hexadecimal, one of `COLOURS`.
        marker: matplotlib's name of the marker.
        published: Whether the line is hollow, thin and dashed.
    """

    colour: str
    marker: str
    published: bool = False

    @property
    def css_variable(self) -> str:
        """The name of the CSS variable of the colour, without its dashes."""
        return VARIABLES[self.colour]


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        title: Its heading.
        alt: Its description in words, for those who cannot see it.
        draw: Fills the axes.
        labels: The methods in it, which the legend explains.
    """

    title: str
    alt: str
    draw: Callable[[Axes], None]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """One figure of a report.

    Args:
        name: The stem of its files.
        title: Its heading.
        panels: Its plots.
        inches: Width and height of a panel.
        legend: The style of each label.
        notes: Sentences below it.
    """

    name: str
    title: str
    panels: list[Panel]
    inches: tuple[float, float] = (5.2, 3.9)
    legend: dict[str, SeriesStyle] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def across(self) -> int:
        """How many panels stand side by side: three narrow ones, or two."""
        return 3 if self.inches[0] < 5 else 2


def drawing_of(
    name: str,
    title: str,
    panels: list[Panel],
    styles: Mapping[str, SeriesStyle],
    notes: list[str],
    inches: tuple[float, float] = (5.2, 3.9),
) -> Drawing | None:
    """Return the figure of these panels, whose legend has the styles of their labels; None if there are no panels.

    Args:
        name: The stem of its files.
        title: Its heading.
        panels: Its plots; may be empty.
        styles: The style of each label, in the order of the legend.
        notes: Sentences below it.
        inches: Width and height of a panel.
    """
    used = {label for panel in panels for label in panel.labels}
    legend = {label: style for label, style in styles.items() if label in used}
    return Drawing(name, title, panels, inches, legend, notes) if panels else None


def import_matplotlib() -> None:
    """Raise a UserError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "figures need matplotlib, which is not installed", "pip install matplotlib, or pass --no_figures"
        ) from None


def series_styles(labels: Sequence[str], published: Sequence[str] = ()) -> dict[str, SeriesStyle]:
    """Return a style for every label. Styles repeat after eight labels.

    Args:
        labels: The labels of measured methods.
        published: The labels of methods from a paper, which are marked as such and come after the others.

    Example:
        >>> series_styles(["ours"], ["theirs"])["theirs"]
        SeriesStyle(colour='#d55e00', marker='s', published=True)
    """
    found = {}
    for number, label in enumerate([*labels, *published]):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        found[label] = SeriesStyle(colour, marker, label in published)
    return found


def draw_files(drawing: Drawing) -> dict[str, bytes]:
    """Return all panels and the legend as the contents of files, by ending: png, svg. Equal figures give equal bytes.

    Args:
        drawing: The figure. Its panels fill rows of `drawing.across` panels.
    """
    columns = min(len(drawing.panels), drawing.across)
    rows = -(-len(drawing.panels) // columns)
    size = columns * drawing.inches[0], rows * drawing.inches[1] + 0.35 * bool(drawing.legend)
    return _drawn(drawing.panels, (rows, columns), size, ("png", "svg"), drawing.legend)


def inline_svg(panel: Panel, inches: tuple[float, float], prefix: str) -> str:
    """Return one panel as an svg element for the page.

    Args:
        panel: The panel.
        inches: Its width and height.
        prefix: The start of all ids in it, so that they are unique on the page.

    Returns:
        The element, whose colours are CSS variables of the page.
    """
    text = _drawn([panel], (1, 1), inches, ("svg",), {}, text=True)["svg"].decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    tag, rest = text.split(">", 1)
    text = re.sub(r'\s(xmlns(:\w+)?|version|width|height)="[^"]*"', "", tag) + ">" + rest
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
    kinds: Sequence[str],
    legend: dict[str, SeriesStyle],
    text: bool = False,
) -> dict[str, bytes]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

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
        figure: Any = Figure(figsize=inches, facecolor="none" if text else PAPER)
        FigureCanvasAgg(figure)
        all_axes = list(figure.subplots(*shape, squeeze=False).flat)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(all_axes, panels):
            _set_axes_style(axes)
            panel.draw(axes)
            if not text:
                axes.set_title(escape_matplotlib(panel.title), loc="left", color=INK, fontsize=11.5, pad=10)
        if legend:
            _legend(figure, legend)
        # As a setting of the figure it would lay out, and draw, each file anew.
        ConstrainedLayoutEngine().execute(figure)
        return {kind: _saved(figure, kind) for kind in kinds}


def _saved(figure: Any, kind: str) -> bytes:
    out = io.BytesIO()
    # No date in the file: equal figures give equal bytes.
    figure.savefig(out, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _set_axes_style(axes: Any) -> None:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(colors=MUTED, labelcolor=MUTED, length=0)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.set_axisbelow(True)


def _legend(figure: Any, legend: dict[str, SeriesStyle]) -> None:
    """Add a legend below the panels, in as many columns as fit, and make room for it."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=escape_matplotlib(label), **line_options(style)) for label, style in legend.items()]
    style = {"loc": "outside lower center", "frameon": False, "labelcolor": INK, "fontsize": 10}
    for columns in range(min(4, len(lines)), 0, -1):
        made = figure.legend(handles=lines, ncols=columns, **style)
        needed = made.get_window_extent(figure.canvas.get_renderer()).width / figure.dpi + 0.1
        width, height = figure.get_size_inches()
        if needed <= width or columns == 1:
            break
        made.remove()
    more = -(-len(lines) // columns) - 1
    figure.set_size_inches(max(width, needed), height + _LEGEND_ROW * more)


def line_options(style: SeriesStyle) -> dict[str, Any]:
    """Return the arguments of `Axes.plot` for a line of this style.

    Example:
        >>> options = line_options(SeriesStyle("#0072b2", "o"))
        >>> options["color"], options["marker"], options["linestyle"]
        ('#0072b2', 'o', '-')
    """
    if style.published:
        hollow = {"markerfacecolor": PAPER, "markeredgecolor": style.colour, "markersize": 5, "markeredgewidth": 1.1}
        return {"color": style.colour, "marker": style.marker, "linestyle": (0, (4, 3)), "linewidth": 1.1, **hollow}
    solid = {"markersize": 6.5, "markeredgecolor": PAPER, "markeredgewidth": 0.9}
    return {"color": style.colour, "marker": style.marker, "linestyle": "-", "linewidth": 2.1, **solid}


def annotate(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **options: Any) -> None:
    """Write a text beside a point.

    Args:
        axes: The axes of a panel.
        text: The text.
        point: x and y, in data.
        offset: From the point to the text, in typographic points.
        options: Further options of matplotlib's `annotate`.
    """
    axes.annotate(text, point, offset, textcoords="offset points", color=INK, **options)


def escape_matplotlib(text: str) -> str:
    """Return a label that matplotlib neither parses as mathematics nor hides because it begins with an underscore."""
    shown = text.replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
