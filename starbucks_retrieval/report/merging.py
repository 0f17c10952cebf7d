"""Runs of several seeds as one method: the means that tables show, and the cells that tests compare."""

from __future__ import annotations

from dataclasses import replace

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.report.columns import Column, MethodResults
from starbucks_retrieval.sizes import Size


def add_seed(method: MethodResults, cell: Cell, path: str, origins: dict[tuple[str, Column, Size | None], str]) -> None:
    """Add the cell of one seed to a method.

    Args:
        method: The method.
        cell: The cell.
        path: Its file.
        origins: The file of the first cell of each method, column and size.

    Raises:
        UserError: The cells of two seeds are over different numbers of queries.
    """
    column = Column(cell.dataset, cell.measure)
    known = method.seeds.setdefault((column, cell.size), [])
    if known and known[0].count != cell.count:
        raise UserError(
            f"{method.label}: {cell.dataset} {cell.measure} at {cell.size} is over {known[0].count} in "
            f"{origins[method.label, column, cell.size]}, but over {cell.count} in {path}",
            "score all seeds with the same judgements",
        )
    known.append(cell)
    origins.setdefault((method.label, column, cell.size), path)
    method.cells[column, cell.size] = cell


def average_seeds(method: MethodResults) -> list[str]:
    """Put the mean over its seeds into every cell of a method, and return a note about their numbers.

    Returns:
        One note, or none if every score has one seed.
    """
    for key, cells in method.seeds.items():
        same = {frozenset(cell.values or ()) for cell in cells}
        values = None
        if len(same) == 1 and (first := cells[0].values):
            values = {name: sum((cell.values or {})[name] for cell in cells) / len(cells) for name in first}
        mean = sum(cell.value for cell in cells) / len(cells)
        method.cells[key] = replace(cells[0], value=mean, values=values)
    counts = sorted({len(cells) for cells in method.seeds.values()})
    if not counts or counts == [1]:
        return []
    shown = " or ".join(map(str, counts))
    return [f"{method.label}: means over {shown} seeds, ± their standard deviation."]
