"""Result files read and laid together: one `MethodResults` a label, with every figure that any of its files holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.metrics.results import Cell, Results, read_results, sets_of_parts
from starbucks_retrieval.report.columns import Column
from starbucks_retrieval.report.costs import Cost, read_costs
from starbucks_retrieval.report.findings import warnings_of
from starbucks_retrieval.sizes import Size, pair_name

# Two stages may add the same numbers up in another order; no table shows so small a difference.
_SAME = 1e-6


@dataclass(frozen=True)
class Source:
    """One result file: what provenance shows of it."""

    label: str
    kind: str
    path: str
    digest: str
    more: dict[str, Any]


@dataclass
class MethodResults:
    """Everything measured of one label: its cells by column and size, and its costs by size."""

    label: str
    cells: dict[tuple[Column, Size | None], Cell] = field(default_factory=dict)
    costs: dict[Size, Cost] = field(default_factory=dict)

    def cell(self, column: Column, size: Size | None) -> Cell | None:
        """The cell, or None where it is missing or not a number."""
        found = self.cells.get((column, size))
        return found if found is not None and math.isfinite(found.value) else None

    def value(self, column: Column, size: Size | None) -> float | None:
        """The figure, or None where it is missing."""
        found = self.cell(column, size)
        return None if found is None else found.value

    def sizes(self, column: Column) -> list[Size]:
        """The sizes at which the column is known, ascending."""
        return sorted(size for known, size in self.cells if known == column and size is not None)


@dataclass(frozen=True)
class Inputs:
    """Methods in the order they were named; `members` are the sizes of files that hold a list of sizes, not a grid.

    Cells whose passages have another depth stand at the size of the queries, and a note says so; those of a grid, and
    those beside a figure of one depth, have no place in any layout and are counted: `asymmetric`.
    `notes` are sentences about what was set aside, `warnings` about what a preflight found wrong.
    """

    methods: list[MethodResults]
    sources: list[Source]
    members: set[Size]
    asymmetric: int
    notes: list[str]
    warnings: list[str]

    @property
    def columns(self) -> list[Column]:
        """Every (data set, measure), in order of appearance."""
        return list(dict.fromkeys(column for method in self.methods for column, _ in method.cells))


def read_inputs(specs: Sequence[str | Path]) -> Inputs:
    """Read `LABEL=path` or `path` (the file's own label) and merge files of one label.

    Raises UserError for a file that cannot be read, for LABEL= before a file of several methods, and where two files
    of one label give another value, or another count, for the same data set, measure and size.
    """
    if not specs:
        raise UserError("no result file is given", "name files that evaluate, sts, transfer or grid wrote: --input")
    methods: dict[str, MethodResults] = {}
    origins: dict[tuple[str, Column, Size | None], str] = {}
    sources, asymmetric = list[Source](), 0
    listed, unsaid = set[Size](), dict[str, list[set[Size]]]()
    notes, warnings = list[str](), list[str]()
    for spec in specs:
        path, parts = _read(str(spec))
        for part in parts:
            method = methods.setdefault(part.label, MethodResults(part.label))
            shown = _placed(part)
            asymmetric += len(part.cells) - len(shown)
            for cell in shown:
                _add(method, cell, path, origins)
            notes += [note for note in _of_two_sizes(part.label, shown) if note not in notes]
            sizes = {cell.size for cell in shown if cell.size is not None}
            if part.layout == "list":
                listed |= sizes
            elif part.layout is None:
                unsaid.setdefault(part.label, []).append(sizes)
            warnings += [text for text in warnings_of(part.label, part.more) if text not in warnings]
            sources.append(Source(part.label, part.kind, path, file_digest(path), part.more))
        notes += _add_costs(methods[parts[0].label], parts, path)
    notes += _join_parts([*methods.values()])
    merged = [method for method in methods.values() if method.cells]
    if not merged:
        raise UserError("the result files hold no figure that a table could show", "measure something first")
    return Inputs(merged, sources, listed.union(*map(_listed, unsaid.values())), asymmetric, notes, warnings)


def _listed(files: Sequence[set[Size]]) -> set[Size]:
    """The sizes of a list among those of the files of one label that do not say what they hold.

    Files of one layer each (or of one dim) that together have every layer at every dim are a grid of separate models.
    """
    together = set().union(*files)
    layers, dims = ({getattr(size, name) for size in together} for name in ("layer", "dim"))
    if min(len(layers), len(dims)) > 1 and len(together) == len(layers) * len(dims):
        return set()
    return set().union(*(sizes for sizes in files if not is_grid(sizes)))


def _join_parts(methods: Sequence[MethodResults]) -> list[str]:
    """Make one data set of those that are parts of one (CQADupStack's forums), and say so.

    Its figure is the mean over the parts that any method has, and is missing where a method lacks one of them.
    """
    notes = []
    for name, parts in sets_of_parts(column.dataset for method in methods for column, _ in method.cells).items():
        if len(parts) < 2:
            continue
        notes.append(f"{name} is the mean over {len(parts)} data sets: {', '.join(parts)}.")
        for method in methods:
            places = [(column.measure, size) for column, size in method.cells if column.dataset in parts]
            for measure, size in dict.fromkeys(places):
                cells = [method.cells.pop((Column(part, measure), size), None) for part in parts]
                there = [cell for cell in cells if cell is not None]
                value = sum(cell.value for cell in there) / len(parts) if len(there) == len(parts) else math.nan
                count = sum(cell.count for cell in there)
                method.cells[Column(name, measure), size] = Cell(name, measure, size, value, count)
    return notes


def is_grid(sizes: Iterable[Size]) -> bool:
    """Whether sizes cross layers with dims: more of them than there are layers, and than there are dims."""
    known = set(sizes)
    return len(known) > max(len({size.layer for size in known}), len({size.dim for size in known}), 0)


def _read(spec: str) -> tuple[str, list[Results]]:
    """The path behind a spec, and what the file holds, one Results a method."""
    label, equals, path = spec.partition("=")
    if not equals or Path(spec).is_file():
        label, path = "", spec
    elif not label.strip() or not path:
        raise UserError(f"cannot read --input {spec!r}", "write LABEL=path or path")
    results = read_results(path)
    parts = results.by_label()
    if not parts:
        raise UserError(f"{path} holds no figures", "measure again")
    if results.kind == "deltas":
        raise UserError(f"{path} holds differences of two grids, not figures", "name the two files it was made of")
    if not label:
        return path, parts
    if len(parts) > 1:
        names = ", ".join(part.label for part in parts)
        raise UserError(f"{path} holds several methods ({names}), and {label}= names one", f"write --input {path}")
    return path, [replace(parts[0], label=label.strip())]


def _placed(part: Results) -> list[Cell]:
    """The cells that have a place of their own at the size of their queries."""
    plain = {(cell.dataset, cell.measure, cell.size) for cell in part.cells if cell.passage_size in (None, cell.size)}
    return [
        cell
        for cell in part.cells
        if cell.passage_size in (None, cell.size)
        or (part.kind != "grid" and (cell.dataset, cell.measure, cell.size) not in plain)
    ]


def _of_two_sizes(label: str, cells: Sequence[Cell]) -> list[str]:
    """A sentence about sizes of queries whose passages are of another depth."""
    pairs = {
        (cell.size, cell.passage_size) for cell in cells if cell.size and cell.passage_size not in (None, cell.size)
    }
    if not pairs:
        return []
    listed = ", ".join(pair_name(*pair) for pair in sorted(pairs))
    return [
        f"{label}: sizes are those of the queries; their passages are of another depth (queries/passages): {listed}."
    ]


def _add(method: MethodResults, cell: Cell, path: str, origins: dict[tuple[str, Column, Size | None], str]) -> None:
    column = Column(cell.dataset, cell.measure)
    known = method.cells.get((column, cell.size))
    origin = (method.label, column, cell.size)
    if known is None or (math.isnan(known.value) and not math.isnan(cell.value)):
        method.cells[column, cell.size] = cell
        origins[origin] = path
        return
    if math.isnan(cell.value):
        return
    known_at, at = (pair_name(one.size, one.passage_size) if one.size else "" for one in (known, cell))
    if abs(known.value - cell.value) > _SAME or known.count != cell.count or known_at != at:
        raise UserError(
            f"{method.label}: {cell.dataset} {cell.measure}{known_at and f' at {known_at}'} is {known.value:.6f} over "
            f"{known.count} in {origins[origin]}, but {cell.value:.6f} over {cell.count}"
            f"{(at and known_at != at and f' at {at}') or ''} in {path}",
            "give the files different labels (LABEL=path), or leave one out",
        )
    if cell.values and not known.values:  # the same figure, and what a test of significance needs besides
        method.cells[column, cell.size] = cell
        origins[origin] = path


def _add_costs(method: MethodResults, parts: Sequence[Results], path: str) -> list[str]:
    """Costs of a file of one method; a clock gives no figure twice, so the first file named counts."""
    if len(parts) > 1:
        return []
    found = read_costs(parts[0].more, path)
    fresh = {size: cost for size, cost in found.items() if size not in method.costs}
    method.costs.update(fresh)
    if len(fresh) == len(found):
        return []
    return [f"Costs of {method.label} in {path} were set aside where an earlier file has them."]
