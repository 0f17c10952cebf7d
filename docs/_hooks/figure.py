"""The figure of quality against cost, drawn from the tables of docs/results.md. `python docs/_hooks/figure.py` draws it anew."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1]
SOURCE = DOCS / "results.md"
FIGURE = DOCS / "assets" / "quality.svg"

# Class of a line, and its words in the legend.
CUT, FITTED, TRAINED = "cut", "fitted", "trained"
LEGEND = {
    CUT: "cut: the model as it is",
    FITTED: "fitted: starbucks fit, no labels",
    TRAINED: "trained: 150 steps with labels",
}
TOP, LEFT, WIDTH, HEIGHT, BETWEEN, LARGEST = 66, 44, 300, 210, 66, 0.75

Grid = dict[tuple[int, int], float]


def read_grid(page: str, heading: str) -> Grid:
    """Return {(layer, dim): value} of the table below a heading, whose rows are layers."""
    rows = _rows(page, f"### {heading}")
    dims = [int(cell) for cell in rows[0][1:]]
    return {(int(row[0]), dim): float(value) for row in rows[2:] for dim, value in zip(dims, row[1:], strict=True)}


def read_trained(page: str) -> Grid:
    """Return {(layer, dim): value} of the trained model on scifact, whose rows are sizes."""
    rows = _rows(page, "## One encoder at six sizes")
    column = rows[0].index("scifact before") + 1
    sizes = (map(int, row[0].split(":")) for row in rows[2:])
    return {(layer, dim): float(row[column]) for (layer, dim), row in zip(sizes, rows[2:], strict=True)}


def _rows(page: str, heading: str) -> list[list[str]]:
    section = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    if section is None:
        raise ValueError(f"{SOURCE} has no heading {heading!r}")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section[1], re.M)]


def as_svg(page: str) -> str:
    """Return the figure for the text of docs/results.md."""
    cut, fitted, trained = read_grid(page, "Cut"), read_grid(page, "Fitted"), read_trained(page)
    deepest, widest = max(cut)
    dims = sorted({dim for _, dim in cut})
    sizes = sorted(trained)
    full, marked = cut[deepest, widest], dims.index(64)
    left = _panel(
        f"All {deepest} layers, the first dims", [f"{deepest}:{dim}" for dim in dims], dims,
        {name: [grid[deepest, dim] for dim in dims] for name, grid in {CUT: cut, FITTED: fitted}.items()}, marked, full,
    )  # fmt: skip
    right = _panel(
        "Fewer layers and dims", [f"{layer}:{dim}" for layer, dim in sizes], dims,
        {name: [grid[size] for size in sizes] for name, grid in {CUT: cut, FITTED: fitted, TRAINED: trained}.items()},
        marked, full,
    )  # fmt: skip
    legend = "".join(
        f'<path class="{name}" d="M{LEFT + 232 * number} 14 h18"/><text x="{LEFT + 24 + 232 * number}" y="18">{words}</text>'
        for number, (name, words) in enumerate(LEGEND.items())
    )
    told = (
        f"nDCG@10 on scifact by bytes per passage. Full size: {full:.3f}. At {deepest}:64, cut {cut[deepest, 64]:.3f} and fitted "
        f"{fitted[deepest, 64]:.3f}. At 3:64, cut {cut[3, 64]:.3f}, fitted {fitted[3, 64]:.3f} and trained {trained[3, 64]:.3f}."
    )
    total = LEFT + 2 * WIDTH + BETWEEN + 30
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {TOP + HEIGHT + 66}" role="img" aria-labelledby="t d" \
font-family="system-ui, sans-serif" font-size="12" fill="#808080">
<!-- made by docs/_hooks/figure.py from the tables of docs/results.md -->
<title id="t">Quality against cost of small sizes</title>
<desc id="d">{told}</desc>
<style>
.cut {{ color: #8a8a8a }} .fitted {{ color: #009688 }} .trained {{ color: #e08000 }}
path {{ fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round }}
circle, .value {{ fill: currentColor }} .value, .strong {{ font-weight: 600 }}
.axis {{ color: #8886; stroke-width: 1 }} .full {{ color: #8889; stroke-width: 1; stroke-dasharray: 4 3 }}
</style>
<g>{legend}</g>
<g transform="translate({LEFT},{TOP})">{left}</g>
<g transform="translate({LEFT + WIDTH + BETWEEN},{TOP})">{right}</g>
</svg>
"""


def _panel(
    title: str, sizes: Sequence[str], dims: Sequence[int], lines: dict[str, list[float]], marked: int, full: float
) -> str:
    """Draw the values of several lines at sizes of these dims; those at the index `marked` are written beside their points."""
    parts = [f'<text class="strong" x="0" y="-22">{title}</text><text x="0" y="-8">nDCG@10 on scifact</text>']
    for tick in (0, 0.2, 0.4, 0.6):
        y = _height(tick)
        parts.append(
            f'<path class="axis" d="M0 {y} h{WIDTH}"/><text x="-6" y="{y + 4}" text-anchor="end">{tick:g}</text>'
        )
    parts.append(f'<path class="full" d="M0 {_height(full)} h{WIDTH}"/>')
    at = [round(WIDTH * math.log2(dim / dims[0]) / math.log2(dims[-1] / dims[0]), 1) for dim in dims]
    for x, size, dim in zip(at, sizes, dims, strict=True):
        parts.append(f'<text x="{x}" y="{HEIGHT + 18}" text-anchor="middle" font-size="11">{size}</text>')
        parts.append(f'<text x="{x}" y="{HEIGHT + 33}" text-anchor="middle">{2 * dim}</text>')
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT + 52}" text-anchor="middle">size (layer:dim), bytes per passage</text>'
    )
    for name, values in lines.items():
        points = [(x, _height(value)) for x, value in zip(at, values, strict=True)]
        parts.append(f'<path class="{name}" d="M{" L".join(f"{x} {y}" for x, y in points)}"/>')
        parts += [f'<circle class="{name}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
    # The best value stands above its point, another below its own or, if a lower point is near, below that.
    best, *others = sorted(((values[marked], name) for name, values in lines.items()), reverse=True)
    heights, lowest = [(best, _height(best[0]) - 8)], 0.0
    for value, name in others:
        below = [_height(each) for each, _ in others if each < value and _height(each) < _height(value) + 24]
        lowest = max(lowest + 14, max([_height(value), *below]) + 17)
        heights.append(((value, name), lowest if lowest < HEIGHT - 2 else _height(value) - 8))
    parts += [
        f'<text class="{name} value" x="{at[marked]}" y="{y:.1f}" text-anchor="middle">{value:.2f}</text>'
        for (value, name), y in heights
    ]
    return "".join(parts)


def _height(value: float) -> float:
    return round(HEIGHT * (1 - value / LARGEST), 1)


if __name__ == "__main__":
    FIGURE.write_text(as_svg(SOURCE.read_text("utf-8")), "utf-8")
