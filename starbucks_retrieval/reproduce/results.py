"""The scores of the rows of a table, from the result files of their jobs; all must be of the same queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, model_of, read_results, write_results
from starbucks_retrieval.metrics.score_tests import SeedScore
from starbucks_retrieval.reproduce.plan import Measured, Plan
from starbucks_retrieval.reproduce.run import is_done
from starbucks_retrieval.sizes import Size

Key = tuple[str, str, Size, Size | None]  # set, measure, size, size of the passages if it differs


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
        gold: The gold scores of each set of pairs of sentences, by the ids of the pairs.
    """

    row: str
    cells: dict[Key, Cell]
    spread: dict[Key, float]
    seeds: dict[str, int]
    costs: dict[str, Any] = field(default_factory=dict)
    by_seed: dict[Key, list[SeedScore]] = field(default_factory=dict)
    gold: dict[str, dict[str, float]] = field(default_factory=dict)


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
        files = [[read_results(job.folder(root) / job.output) for job in jobs] for jobs in seeds]
        runs = [{key: cell for file in each for key, cell in _cells(file, one).items()} for each in files]
        models = [_model(each) for each in files]
        gold = files[0][0].more.get("gold") or {}
        if len(gold) == 1:
            scores.gold[one.set] = next(iter(gold.values()))
        for key in runs[0]:
            cells = [run[key] for run in runs if key in run]
            scores.cells[key] = _mean(cells, f"row {one.row!r} on {one.set}")
            scores.by_seed[key] = [SeedScore.of(run[key], model) for run, model in zip(runs, models) if key in run]
            if len(cells) > 1:
                values = [cell.value for cell in cells]
                middle = math.fsum(values) / len(values)
                scores.spread[key] = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))
        scores.seeds[one.set] = len(seeds)
        if len(files[0]) == 1:
            more = files[0][0].more
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


def write_row(folder: Path, number: int, label: str, scores: RowScores, runs: int) -> list[str]:
    """Write the means of a row as a result file, and those of each seed if there are several.

    Args:
        folder: The folder of the files.
        number: The position of the row, which names them.
        label: What tables call the row.
        scores: The scores; seeds and costs are written too.
        runs: Number of runs that other rows have; those of a row with one seed are all the same if it is not trained.

    Returns:
        The files of the seeds, for `report`: that of the means if there is one seed.
    """
    path = folder / f"{number}.json"
    more = {"seeds": scores.seeds, "gold": scores.gold} | scores.costs
    write_results(path, Results("grid", label, [*scores.cells.values()], more))
    seeds = max(scores.seeds.values(), default=1)
    if seeds == 1:
        return [str(path)] * runs
    found = []
    for seed in range(seeds):
        ours = {key: by_seed[seed] for key, by_seed in scores.by_seed.items() if seed < len(by_seed)}
        cells = [_cell_of_seed(scores.cells[key], score) for key, score in ours.items()]
        models = {key[0]: score.model for key, score in ours.items() if score.model}
        more = {"fingerprints": models, "gold": scores.gold} | (scores.costs if seed == 0 else {})
        path = folder / f"{number}-seed{seed + 1}.json"
        write_results(path, Results("grid", label, cells, more))
        found.append(str(path))
    return found


def _cell_of_seed(mean: Cell, score: SeedScore) -> Cell:
    values = None
    if mean.values and score.values is not None:
        values = dict(zip(sorted(mean.values), score.values.tolist(), strict=True))
    return replace(mean, value=score.value, values=values)


def _cells(results: Results, one: Measured) -> dict[Key, Cell]:
    """Return the cells of a result file under the name of their set; of several data sets, their mean."""
    found: dict[Key, list[Cell]] = {}
    for cell in results.cells:
        if cell.size is not None:
            key = (one.set, cell.measure, cell.size, cell.passage_size)
            found.setdefault(key, []).append(replace(cell, dataset=one.set, label=None))
    return {key: cells[0] if len(cells) == 1 else _mean_of_sets(cells) for key, cells in found.items()}


def _model(files: Sequence[Results]) -> str:
    """Return the fingerprint of the model of a seed, "" if it is unknown or every size has its own model."""
    return model_of(files[0].more, "") if len(files) == 1 else ""


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
