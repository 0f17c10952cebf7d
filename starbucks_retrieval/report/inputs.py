"""The result files of a report: every score by method, data set, measure and size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.metrics.results import Cell, Results, model_of, read_results
from starbucks_retrieval.report.columns import (
    Column,
    MethodResults,
    ReportSizes,
    choose_report_sizes,
    is_grid,
    measure_key,
)
from starbucks_retrieval.report.findings import preflight_warnings, unlike_training
from starbucks_retrieval.report.merging import add_cell, add_costs, add_seed, average_parts, average_seeds
from starbucks_retrieval.sizes import Size, pair_name


@dataclass(frozen=True)
class Source:
    """The scores of one method in a result file.

    Attributes:
        label: The method.
        kind: The stage that wrote the file.
        path, digest: The file, and its BLAKE2b digest.
        more: Its keys besides the cells.
    """

    label: str
    kind: str
    path: str
    digest: str
    more: dict[str, Any]


@dataclass(frozen=True)
class ReportInputs:
    """The contents of all result files of a report.

    A score of queries and passages of different layers is listed at the size of the queries, and a note says so. Where
    the table already has a score for that size, and in a grid, it is left out and counted.

    Args:
        methods: The methods, in the order in which they were named.
        sources: The files.
        listed_sizes: The sizes of the files that hold a list of sizes, not a grid.
        left_out: How many scores of queries and passages of different layers are left out.
        notes: Sentences about other scores that were left out or combined.
        warnings: Sentences about serious findings of the preflight.
        unlike: Sentences about methods that were not trained alike.
    """

    methods: list[MethodResults]
    sources: list[Source]
    listed_sizes: set[Size]
    left_out: int
    notes: list[str]
    warnings: list[str]
    unlike: list[str]

    @property
    def columns(self) -> list[Column]:
        """Every data set and measure, in order of appearance."""
        return list(dict.fromkeys(column for method in self.methods for column, _ in method.cells))

    @property
    def sizes(self) -> set[Size]:
        """Every measured size."""
        return {size for method in self.methods for _, size in method.cells if size is not None}

    def choose_sizes(self, sizes: str | None = None) -> ReportSizes:
        """Return the sizes that tables show; see `choose_report_sizes`."""
        return choose_report_sizes(self.sizes, self.listed_sizes, sizes)


def read_inputs(
    specs: Sequence[str | Path],
    *,
    measures: Sequence[str] | None = None,
    seeds: bool = False,
    models: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> ReportInputs:
    """Read result files, and merge those of one label.

    Args:
        specs: Each `LABEL=path`, or `path` for the label that the file has.
        measures: The measures to keep; None keeps all.
        seeds: Files of one label that have the same data set, measure and size are runs of several seeds. A figure is their
            mean.
        models: (method, settings of its training) of methods whose files do not have them.

    Raises:
        UserError: A file cannot be read, `LABEL=` names a file of several methods, two files of one label differ in
            the count, or without `seeds` the value, of the same data set, measure and size, or no file has a measure.
    """
    if not specs:
        raise UserError("no result file is given", "name files that evaluate, sts, transfer or grid wrote: --input")
    methods, sources, left_out = dict[str, MethodResults](), list[Source](), 0
    listed, unknown = set[Size](), dict[str, list[set[Size]]]()
    notes, warnings, training = list[str](), list[str](), list(models)
    for spec in specs:
        path, parts = _read_file(str(spec))
        for part in _of_measures(parts, measures):
            method = methods.setdefault(part.label, MethodResults(part.label))
            shown = _shown_cells(part)
            kept = {*map(id, shown), *map(id, method.add_pairs(part.cells))}
            left_out += sum(id(cell) not in kept for cell in part.cells)
            method.gold |= part.more.get("gold") or {}
            for cell in shown:
                if seeds:
                    add_seed(method, cell, path, model_of(part.more, cell.dataset))
                else:
                    add_cell(method, cell, path)
            notes += [note for note in _layer_notes(part.label, shown) if note not in notes]
            sizes = {cell.size for cell in shown if cell.size is not None}
            if part.layout == "list":
                listed |= sizes
            elif part.layout is None:
                unknown.setdefault(part.label, []).append(sizes)
            warnings += [text for text in preflight_warnings(part.label, part.more) if text not in warnings]
            if isinstance(trained := part.more.get("training"), dict):
                training.append((part.label, trained))
            sources.append(Source(part.label, part.kind, path, file_digest(path), part.more))
        if len(parts) == 1:
            notes += add_costs(methods[parts[0].label], parts[0].more, path)
    _check_measures(measures, methods.values())
    unlike, budgets = unlike_training(training)
    notes += [note for method in methods.values() for note in average_seeds(method)]
    notes += [*average_parts([*methods.values()]), *budgets]
    merged = [method for method in methods.values() if method.cells]
    if not merged:
        raise UserError("the result files hold no figure that a table could show", "measure something first")
    return ReportInputs(
        merged, sources, listed.union(*map(_guess_list, unknown.values())), left_out, notes, warnings, unlike
    )


def _of_measures(parts: Sequence[Results], measures: Sequence[str] | None) -> list[Results]:
    """Return the results with the cells of some measures only."""
    if measures is None:
        return list(parts)
    kept = {measure_key(name) for name in measures}
    return [replace(part, cells=[cell for cell in part.cells if measure_key(cell.measure) in kept]) for part in parts]


def _check_measures(measures: Sequence[str] | None, methods: Iterable[MethodResults]) -> None:
    """Raise UserError for a measure that no file has."""
    found = {measure_key(column.measure) for method in methods for column, _ in method.cells}
    for name in measures or ():
        if measure_key(name) not in found:
            raise UserError(f"--measures {name}: no file has this measure", "starbucks evaluate --measures computes it")


def _guess_list(files: Sequence[set[Size]]) -> set[Size]:
    """Return the sizes that form a list in the files of one label, which do not say whether they hold a list or a grid.

    Files of one layer each (or of one dim) that together have every layer at every dim are a grid of separate models.
    """
    together = set().union(*files)
    layers, dims = ({getattr(size, name) for size in together} for name in ("layer", "dim"))
    if min(len(layers), len(dims)) > 1 and len(together) == len(layers) * len(dims):
        return set()
    return set().union(*(sizes for sizes in files if not is_grid(sizes)))


def _read_file(spec: str) -> tuple[str, list[Results]]:
    """Return the path in a spec, and the results of each method in the file."""
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


def _shown_cells(part: Results) -> list[Cell]:
    """Return the cells of one size, and those of two sizes that are alone at the size of their queries."""
    key = attrgetter("dataset", "measure", "size")
    taken = {key(cell) for cell in part.cells if _of_one_size(cell)}
    return [cell for cell in part.cells if _of_one_size(cell) or (part.kind != "grid" and key(cell) not in taken)]


def _of_one_size(cell: Cell) -> bool:
    return cell.passage_size in (None, cell.size)


def _layer_notes(label: str, cells: Iterable[Cell]) -> list[str]:
    """Return a note about the sizes whose queries and passages have different layers."""
    pairs = {(cell.size, cell.passage_size) for cell in cells if cell.size and not _of_one_size(cell)}
    listed = ", ".join(pair_name(*pair) for pair in sorted(pairs))
    text = f"{label}: sizes are those of the queries; their passages are of another depth (queries/passages): {listed}."
    return [text] if pairs else []
