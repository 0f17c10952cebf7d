"""The table and the heat maps of queries at one layer against passages at another (arXiv 2411.17299, Fig. 5)."""

from __future__ import annotations

import math

from starbucks_retrieval.report.columns import Column, MethodResults, measure_name
from starbucks_retrieval.report.drawing import Drawing, drawing_of
from starbucks_retrieval.report.figures import heat_panel
from starbucks_retrieval.report.inputs import ReportInputs
from starbucks_retrieval.report.tables import Block, Heading, Table, TableCell, TableRow
from starbucks_retrieval.sizes import Size


def layer_pairs_table(inputs: ReportInputs) -> Table | None:
    """Return a table with one matrix of query layers and passage layers for each method, data set, measure and dim.

    Scores of one layer for both come from the cells of that size.

    Args:
        inputs: The scores.

    Returns:
        The table; None where no method has several pairs of layers at one dim.
    """
    found = [(method, column, dim) for method in inputs.methods for column, dim in _matrices(method)]
    layers = sorted({other.layer for method in inputs.methods for _, _, other in method.pairs})
    if not found:
        return None
    blocks = []
    for method, column, dim in found:
        title = f"{method.label}, {column.dataset} {measure_name(column.measure)}, dim {dim}"
        sides = sorted({size.layer for known, size, _ in method.pairs if known == column and size.dim == dim})
        rows = [
            TableRow(f"layer {side}", tuple(TableCell(_score(method, column, side, layer, dim)) for layer in layers))
            for side in sides
        ]
        blocks.append(Block(title, tuple(rows)))
    headings = tuple(Heading(f"layer {layer}", "passages") for layer in layers)
    notes = [
        "Queries are encoded at the layer of the row, passages at that of the column; both have the dim of the block."
    ]
    name, title = "layer_pairs", "Queries at one layer, passages at another"
    return Table(name, title, "method and data set", headings, tuple(blocks), notes, rows="queries")


def layer_pairs_figure(inputs: ReportInputs) -> Drawing | None:
    """Draw the matrices of `layer_pairs_table` as heat maps, at the smallest, the middle and the largest dim.

    The panels of one data set and measure have the same scale.

    Args:
        inputs: The scores.

    Returns:
        The figure; None where there is no such table.
    """
    panels = []
    columns = dict.fromkeys(column for method in inputs.methods for column, _ in _matrices(method))
    for column in columns:
        matrices = {}
        for method in inputs.methods:
            dims = sorted(dim for known, dim in _matrices(method) if known == column)
            for dim in dict.fromkeys(dims[i] for i in (0, len(dims) // 2, -1) if dims):
                title = f"{method.label}: {column.dataset} {measure_name(column.measure)}, dim {dim}"
                matrices[title] = _matrix(method, column, dim)
        values = [value for matrix in matrices.values() for value in matrix.values()]
        names = ("layer of the queries", "layer of the passages")
        limits = (min(values), max(values)) if values else (0.0, 0.0)
        panels += [heat_panel(title, matrix, limits, names) for title, matrix in matrices.items() if matrix]
    notes = ["The table has all dims."]
    return drawing_of("layer_pairs", "Queries at one layer, passages at another", panels, {}, notes)


def _matrix(method: MethodResults, column: Column, dim: int) -> dict[tuple[int, int], float]:
    """Return {(layer of the queries, layer of the passages): score}."""
    layers = {layer for known, *sizes in method.pairs if known == column for layer in (one.layer for one in sizes)}
    scores = {
        (side, layer): _score(method, column, side, layer, dim) for side in sorted(layers) for layer in sorted(layers)
    }
    return {pair: score for pair, score in scores.items() if score is not None}


def _matrices(method: MethodResults) -> list[tuple[Column, int]]:
    return list(dict.fromkeys((column, size.dim) for column, size, _ in method.pairs))


def _score(method: MethodResults, column: Column, side: int, layer: int, dim: int) -> float | None:
    size, other = Size(side, dim), Size(layer, dim)
    found = method.pairs.get((column, size, other))
    if found is None and side == layer:
        return method.value(column, size)
    return found if found is not None and math.isfinite(found) else None
