"""Print a grid as matrices of layers and dims, and subtract one grid from another."""

from __future__ import annotations

import math
from pathlib import Path

from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.metrics.results import Cell, Results, read_results
from starbucks_retrieval.provenance import describe

MISSING = "missing"


def matrices(results: Results, signed: bool = False) -> str:
    """Return text matrices with layers as rows and dims as columns, one for each data set and measure.

    Results whose queries and passages differ in layer give one matrix of both layers for each dim.

    Args:
        results: A grid; cells that it lacks are shown as missing.
        signed: Whether values are differences, shown with their sign.
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
    layers, columns = (sorted(set(axis)) for axis in zip(*found))
    head = f"{dataset}, {measure}"
    corner = "layer \\ dim"
    if dim is not None:
        head, corner = f"{head}, dim {dim}", "query \\ passage layer"
    rows = [[corner, *map(str, columns)]]
    for layer in layers:
        rows.append([str(layer), *(_value_text(found.get((layer, column), math.nan), signed) for column in columns)])
    counts = sorted({cell.count for cell in cells if cell.count})
    of = f" ({', '.join(map(str, counts))} {unit})" if counts else ""
    return "\n".join([head + of, *align_columns(rows, "r")])


def _value_text(value: float, signed: bool) -> str:
    if not math.isfinite(value):
        return MISSING
    return f"{value:+.4f}" if signed else f"{value:.4f}"


def deltas(minuend: str | Path, subtrahend: str | Path) -> Results:
    """Subtract the cells of one result file from those of another.

    Args:
        minuend: The result file to subtract from.
        subtrahend: The result file to subtract.

    Returns:
        Results of the kind `deltas`. The value of a cell that only one file has is NaN.

    Raises:
        UserError: The files have no cell in common, a cell is over different numbers of queries, or a file
            holds deltas.
    """
    left, right = read_results(minuend), read_results(subtrahend)
    for path, results in ((minuend, left), (subtrahend, right)):
        if results.kind == "deltas":
            raise UserError(f"{path} holds deltas already", "name the two files they were made of")
    ours, theirs = _by_key(left, minuend), _by_key(right, subtrahend)
    if not ours.keys() & theirs.keys():
        raise UserError(
            f"{minuend} and {subtrahend} have no cell in common",
            "measure both models on the same data sets, by the same measures, at the same layers and dims",
        )
    cells = []
    for key in ours | theirs:
        mine, other = ours.get(key), theirs.get(key)
        known = mine or other
        assert known is not None
        if mine and other and mine.count != other.count:
            raise UserError(
                f"{known.dataset} {known.measure} at {known.size}: {mine.count} queries in {minuend}, "
                f"{other.count} in {subtrahend}",
                "measure both on the same queries",
            )
        value = mine.value - other.value if mine and other else math.nan
        cells.append(Cell(known.dataset, known.measure, known.size, value, known.count, known.passage_size))
    made_of = {
        name: {"label": results.label, "kind": results.kind, "blake2b": file_digest(path)}
        for name, results, path in (("minuend", left, minuend), ("subtrahend", right, subtrahend))
    }
    return Results("deltas", f"{left.label} − {right.label}", cells, {"made_of": made_of, "provenance": describe()})


def _by_key(results: Results, path: str | Path) -> dict[tuple, Cell]:
    cells: dict[tuple, Cell] = {}
    for cell in results.cells:
        key = cell.dataset, cell.measure, cell.size, cell.passage_size
        if key in cells:
            raise UserError(f"{path} has {cell.dataset} {cell.measure} at {cell.size} twice", "measure again")
        cells[key] = cell
    return cells
