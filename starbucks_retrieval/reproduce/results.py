"""The scores of the rows of a table, from the result files of their jobs; all must be of the same queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results
from starbucks_retrieval.reproduce.plan import Measured, Plan
from starbucks_retrieval.reproduce.run import is_done
from starbucks_retrieval.sizes import Size

Key = tuple[str, str, Size, Size | None]  # set, measure, size, size of the passages if it differs


@dataclass(frozen=True)
class SeedScore:
    """A score of one seed.

    Attributes:
        value: The score.
        values: Those of its queries, or the cosines of its pairs, in the order of their ids; None without.
    """

    value: float
    values: np.ndarray | None

    @classmethod
    def of(cls, cell: Cell) -> SeedScore:
        """Return the score of a cell."""
        return cls(cell.value, np.array([cell.values[key] for key in sorted(cell.values)]) if cell.values else None)


@dataclass(frozen=True)
class RowScores:
    """The scores of a row.

    Attributes:
        row: Its name.
        cells: Its scores, means over the seeds; the values of queries are means over the seeds too.
        spread: The standard deviation over the seeds, where there are several.
        seeds: How many seeds each set has.
        costs: Entries of the result files about the costs of sizes, of the first seed.
        by_seed: The scores of each seed.
    """

    row: str
    cells: dict[Key, Cell]
    spread: dict[Key, float]
    seeds: dict[str, int]
    costs: dict[str, Any] = field(default_factory=dict)
    by_seed: dict[Key, list[SeedScore]] = field(default_factory=dict)


def collect(plan: Plan, root: Path) -> tuple[dict[str, RowScores], dict[tuple[str, str], str]]:
    """Read what the finished jobs of a plan measured.

    Args:
        plan: The plan.
        root: The output folder.

    Returns:
        The scores by row, and why the others are missing: {(row, set or ""): reason}.

    Raises:
        UserError: A result file is damaged, or a row was scored on other queries or pairs than the rest.
    """
    found: dict[str, RowScores] = {}
    missing = dict(plan.not_run)
    for one in plan.measured:
        seeds = [jobs for jobs in one.seeds if all(is_done(job, root) for job in jobs)]
        if len(seeds) < len(one.seeds):
            missing[one.row, one.set] = f"{len(seeds)} of {len(one.seeds)} seeds were run" if seeds else "not run yet"
        if not seeds:
            continue
        scores = found.setdefault(one.row, RowScores(one.row, {}, {}, {}))
        runs = [
            {key: cell for job in jobs for key, cell in _cells(job.folder(root) / job.output, one).items()}
            for jobs in seeds
        ]
        for key in runs[0]:
            cells = [run[key] for run in runs if key in run]
            scores.cells[key] = _mean(cells, f"row {one.row!r} on {one.set}")
            scores.by_seed[key] = [SeedScore.of(cell) for cell in cells]
            if len(cells) > 1:
                values = [cell.value for cell in cells]
                middle = math.fsum(values) / len(values)
                scores.spread[key] = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))
        scores.seeds[one.set] = len(seeds)
        if len(seeds[0]) == 1:
            more = read_results(seeds[0][0].folder(root) / seeds[0][0].output).more
            scores.costs.update({key: value for key, value in more.items() if key.startswith("cost")})
    check_queries([*found.values()])
    return found, missing


def check_queries(rows: Sequence[RowScores]) -> None:
    """Raise UserError if a row was scored on other queries or pairs than the first row with the same set."""
    first: dict[tuple[str, str], tuple[str, Cell]] = {}
    for row in rows:
        for (name, measure, _, _), cell in row.cells.items():
            other, expected = first.setdefault((name, measure), (row.row, cell))
            if cell.count != expected.count or (cell.values or {}).keys() != (expected.values or {}).keys():
                raise UserError(
                    f"row {row.row!r} was scored on other queries of {name} than {other!r}: {cell.count}, not "
                    f"{expected.count}",
                    "measure both on the same queries",
                )


def write_row(path: Path, label: str, scores: RowScores) -> None:
    """Write the scores of a row as a result file, which `report` and `choose` read.

    Args:
        path: The file.
        label: What tables call the row.
        scores: The scores; seeds and costs are written too.
    """
    write_results(path, Results("grid", label, [*scores.cells.values()], {"seeds": scores.seeds} | scores.costs))


def _cells(path: Path, one: Measured) -> dict[Key, Cell]:
    """Return the cells of a result file under the name of their set; of several data sets, their mean."""
    found: dict[Key, list[Cell]] = {}
    for cell in read_results(path).cells:
        if cell.size is not None:
            key = (one.set, cell.measure, cell.size, cell.passage_size)
            found.setdefault(key, []).append(replace(cell, dataset=one.set, label=None))
    return {key: cells[0] if len(cells) == 1 else _mean_of_sets(cells) for key, cells in found.items()}


def _mean_of_sets(cells: Sequence[Cell]) -> Cell:
    """Return the mean over data sets that count as one; as in `report`, without values of queries."""
    value = math.fsum(cell.value for cell in cells) / len(cells)
    return replace(cells[0], value=value, count=sum(cell.count for cell in cells), values=None)


def _mean(cells: Sequence[Cell], where: str) -> Cell:
    """Return the mean over seeds of a score and of its values by query."""
    first = cells[0]
    for cell in cells[1:]:
        if cell.count != first.count or (cell.values or {}).keys() != (first.values or {}).keys():
            raise UserError(f"{where}: two seeds were scored on different queries", "measure them on the same ones")
    value = math.fsum(cell.value for cell in cells) / len(cells)
    values = None
    if first.values and all(cell.values for cell in cells):
        values = {key: math.fsum((cell.values or {})[key] for cell in cells) / len(cells) for key in first.values}
    return replace(first, value=value, values=values)
