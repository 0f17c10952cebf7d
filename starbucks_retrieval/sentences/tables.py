"""Plain tables whose rows are sizes and whose columns are data sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.sizes import Size

MISSING = "–"


def average(cells: Sequence[Cell]) -> float:
    """The mean of the cells' values; NaN if one is missing, since a mean over fewer sets is another figure."""
    return math.fsum(cell.value for cell in cells) / len(cells)


def size_table(cells: Sequence[Cell], text: Callable[[Cell], str] | None = None) -> str:
    """A row for each size, a column for each data set and measure, and the average over the sets' first measures.

    `text` writes one cell; the default has four decimals. A value that is missing or not finite is shown as such.
    """
    sizes = sorted({cell.size for cell in cells if cell.size is not None})
    columns = list(dict.fromkeys((cell.dataset, cell.measure) for cell in cells))
    sets = list(dict.fromkeys(dataset for dataset, _ in columns))
    first = [next(column for column in columns if column[0] == dataset) for dataset in sets]
    by_place = {(cell.size, cell.dataset, cell.measure): cell for cell in cells}
    heads = [name if (name, measure) in first else f"{name} {measure}" for name, measure in columns]
    rows = [["size", *heads, *(["Average"] if len(sets) > 1 else [])]]
    for size in sizes:
        row = [str(size)]
        for dataset, measure in columns:
            cell = by_place.get((size, dataset, measure))
            row.append(MISSING if cell is None or math.isnan(cell.value) else (text or _plain)(cell))
        if len(sets) > 1:
            row.append(_mean([by_place.get((size, *column)) for column in first], size, text))
        rows.append(row)
    return "\n".join(align_columns(rows, marks="*"))


def _mean(cells: Sequence[Cell | None], size: Size, text: Callable[[Cell], str] | None) -> str:
    present = [cell for cell in cells if cell is not None]
    value = average(present) if len(present) == len(cells) else math.nan
    return MISSING if math.isnan(value) else (text or _plain)(Cell("Average", "", size, value, len(present)))


def _plain(cell: Cell) -> str:
    return f"{cell.value:.4f}"
