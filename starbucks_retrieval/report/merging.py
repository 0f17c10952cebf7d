"""The scores of a method from several files: the same cell twice, several seeds, parts of a data set, and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, sets_of_parts
from starbucks_retrieval.report.columns import Column, Cost, MethodResults
from starbucks_retrieval.sizes import Size, pair_name

# Two stages may add the same numbers in another order. No table shows so small a difference.
_TOLERANCE = 1e-6
_COSTS = tuple(field.name for field in fields(Cost))


def add_cell(method: MethodResults, cell: Cell, path: str) -> None:
    """Add a cell to a method. NaN gives way to a number, and a cell with values of single queries replaces its equal.

    Args:
        method: The method.
        cell: The cell.
        path: Its file.

    Raises:
        UserError: Another file has another value, count or size of the passages.
    """
    key = Column(cell.dataset, cell.measure), cell.size
    known = method.cells.get(key)
    if known is None or (math.isnan(known.value) and not math.isnan(cell.value)):
        method.cells[key], method.origins[key] = cell, path
        return
    if math.isnan(cell.value):
        return
    known_at, at = (pair_name(one.size, one.passage_size) if one.size else "" for one in (known, cell))
    if abs(known.value - cell.value) > _TOLERANCE or known.count != cell.count or known_at != at:
        raise UserError(
            f"{method.label}: {cell.dataset} {cell.measure}{known_at and f' at {known_at}'} is {known.value:.6f} over "
            f"{known.count} in {method.origins[key]}, but {cell.value:.6f} over {cell.count}"
            f"{(at and known_at != at and f' at {at}') or ''} in {path}",
            "give the files different labels (LABEL=path), or leave one out",
        )
    if cell.values and not known.values:  # significance is tested over single queries
        method.cells[key], method.origins[key] = cell, path


def add_seed(method: MethodResults, cell: Cell, path: str, model: str = "") -> None:
    """Add the cell of one seed to a method.

    Args:
        method: The method.
        cell: The cell.
        path: Its file.
        model: The fingerprint of its model, "" if unknown.

    Raises:
        UserError: The cells of two seeds are over different numbers of queries.
    """
    key = Column(cell.dataset, cell.measure), cell.size
    known = method.seeds.setdefault(key, [])
    if known and known[0].count != cell.count:
        raise UserError(
            f"{method.label}: {cell.dataset} {cell.measure} at {cell.size} is over {known[0].count} in "
            f"{method.origins[key]}, but over {cell.count} in {path}",
            "score all seeds with the same judgements",
        )
    known.append(cell)
    method.models.setdefault(key, []).append(model)
    method.origins.setdefault(key, path)
    method.cells[key] = cell


def are_same(cells: Sequence[Cell]) -> bool:
    """Return whether the cells of all seeds are one run: that of a method without training."""
    return all(cell == cells[0] for cell in cells)


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
    if all(map(are_same, method.seeds.values())):
        return [f"{method.label}: one run, the same for all {shown} seeds."]
    return [f"{method.label}: means over {shown} seeds, ± their standard deviation."]


def average_parts(methods: Sequence[MethodResults]) -> list[str]:
    """Replace the parts of a data set (CQADupStack's forums) by their mean, and return a note about each.

    The mean is missing where a method lacks a part that another method has.
    """
    notes = []
    for name, parts in sets_of_parts(column.dataset for method in methods for column, _ in method.cells).items():
        if len(parts) < 2:
            continue
        notes.append(f"{name} is the mean over {len(parts)} data sets: {', '.join(parts)}.")
        for method in methods:
            keys = [(column.measure, size) for column, size in method.cells if column.dataset in parts]
            for measure, size in dict.fromkeys(keys):
                cells = [method.cells.pop((Column(part, measure), size), None) for part in parts]
                present = [cell for cell in cells if cell is not None]
                for part in parts:
                    method.seeds.pop((Column(part, measure), size), None)
                complete = len(present) == len(cells)
                value = sum(cell.value for cell in present) / len(parts) if complete else math.nan
                count = sum(cell.count for cell in present)
                method.cells[Column(name, measure), size] = Cell(name, measure, size, value, count)
    return notes


def add_costs(method: MethodResults, more: Mapping[str, Any], path: str) -> list[str]:
    """Add the costs of a file of one method. Timings differ from run to run, so those of the first file count.

    Args:
        method: The method.
        more: The keys of the file besides its cells, of which `costs` is read.
        path: The file, for messages.

    Returns:
        A note if an earlier file has some of the costs.

    Raises:
        UserError: A size or a number cannot be read.
    """
    try:
        found = {
            Size.parse(size): Cost(*(_positive_or_none(record.get(name)) for name in _COSTS))
            for size, record in (more.get("costs") or {}).items()
        }
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, UserError) as error:
        raise UserError(f"{path}: damaged costs: {type(error).__name__}: {error}", "measure again") from None
    ignored = found.keys() & method.costs.keys()
    method.costs = found | method.costs
    return [f"Costs of {method.label} in {path} are ignored where an earlier file has them."] if ignored else []


def _positive_or_none(value: Any) -> float | None:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) and number > 0 else None
