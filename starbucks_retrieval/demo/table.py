"""The demonstration's figures, one row a size, and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One size: what it costs, and its scores by measure before and after training."""

    size: str
    parameters: int
    bytes_per_passage: int
    texts_per_second: float
    before: dict[str, float]
    after: dict[str, float]


def text_table(rows: Sequence[Row]) -> str:
    """Aligned plain text under a two-line header."""
    measures = list(rows[0].before)
    head = ["size", "parameters", "bytes/passage", "texts/s", *["before", "after"] * len(measures)]
    cells = [head, *(_cells(row, measures) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    widths[4:] = [max(width, 7) for width in widths[4:]]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells]
    left = len("  ".join(" " * width for width in widths[:4]))
    over = "".join(f"  {name:^{widths[4 + 2 * i] + widths[5 + 2 * i] + 2}}" for i, name in enumerate(measures))
    return "\n".join([(" " * left + over).rstrip(), *lines])


def _cells(row: Row, measures: Sequence[str]) -> list[str]:
    scores = [f"{scored[name]:.3f}" for name in measures for scored in (row.before, row.after)]
    return [row.size, millions(row.parameters), str(row.bytes_per_passage), rate(row.texts_per_second), *scores]


def millions(count: int) -> str:
    """`13.5 M`; small numbers whole."""
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"


def rate(per_second: float) -> str:
    """`1,240`, or one digit after the point for slow things."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
