"""A grid as text: a matrix of layers and dims for each data set and measure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.metrics.results import Cell, Results

MISSING = "missing"


def matrices(results: Results, signed: bool = False) -> str:
    """Rows are layers and columns dims; where queries and passages differ in layer, a matrix a dim of both layers.

    A cell that is not there is shown as missing. `signed` shows differences.
    """
    groups: dict[tuple[str, str, int | None], list[Cell]] = {}
    for cell in results.cells:
        if cell.size is not None:
            dim = cell.size.dim if cell.passage_size else None
            groups.setdefault((cell.dataset, cell.measure, dim), []).append(cell)
    unit = "pairs" if results.kind == "sts" else "queries"
    return "\n\n".join(_matrix(*name, cells, unit, signed) for name, cells in groups.items())


def _matrix(dataset: str, measure: str, dim: int | None, cells: list[Cell], unit: str, signed: bool) -> str:
    found = {}
    for cell in cells:
        assert cell.size is not None
        column = cell.passage_size.layer if cell.passage_size else cell.size.dim
        found[cell.size.layer, column] = cell.value
    layers, columns = _distinct(row for row, _ in found), _distinct(column for _, column in found)
    head = f"{dataset}, {measure}"
    corner = "layer \\ dim"
    if dim is not None:
        head, corner = f"{head}, dim {dim}", "query \\ passage layer"
    rows = [[corner, *map(str, columns)]]
    for layer in layers:
        rows.append([str(layer), *(_shown(found.get((layer, column), math.nan), signed) for column in columns)])
    counts = _distinct(cell.count for cell in cells if cell.count)
    of = f" ({', '.join(map(str, counts))} {unit})" if counts else ""
    return "\n".join([head + of, *align_columns(rows, "r")])


def _distinct(values: Iterable[int]) -> list[int]:
    return sorted(set(values))


def _shown(value: float, signed: bool) -> str:
    if not math.isfinite(value):
        return MISSING
    return f"{value:+.4f}" if signed else f"{value:.4f}"
