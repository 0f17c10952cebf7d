"""choose(): the best size under a budget, the front, its knee, and a ladder for the next training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.choose.candidates import BYTES, MILLISECONDS, Candidate, candidates, front, knee
from starbucks_retrieval.choose.size_list import propose_sizes
from starbucks_retrieval.cli import format_number, log
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Results, read_results
from starbucks_retrieval.sizes import Sizes


@dataclass(frozen=True)
class SizeChoice:
    """`best` under the budget, and why; the whole `front`, cheapest first; its `knee`; a `model_sizes` if one was asked for."""

    best: Candidate
    reason: str
    front: list[Candidate]
    knee: Candidate
    measure: str
    datasets: list[str]
    model_sizes: Sizes | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "measure": self.measure,
            "datasets": self.datasets,
            "best": self.best.to_json(),
            "reason": self.reason,
            "knee": self.knee.to_json(),
            "front": [one.to_json() for one in self.front],
            **({"sizes": str(self.model_sizes)} if self.model_sizes is not None else {}),
        }

    def table(self) -> str:
        """The front as aligned text, cheapest first; `*` marks the best under the budget, `k` the knee."""
        units = list(self.front[0].costs)
        rows = [["", "size", self.measure, *units]]
        for one in self.front:  # the best under any budget is one of these
            marks = ("*" if one is self.best else "") + ("k" if one is self.knee else "")
            rows.append(
                [marks, str(one.size), f"{one.quality:.4f}", *(format_number(one.costs[unit]) for unit in units)]
            )
        return "\n".join(align_columns(rows, "r"))


def choose(
    inputs: str | Path | Sequence[str | Path],
    *,
    measure: str | None = None,
    budget_ms: float | None = None,
    bytes_per_passage: float | None = None,
    min_quality: float | None = None,
    auto_sizes: int | None = None,
) -> SizeChoice:
    """Read result files of one model, average their data sets, and choose among the sizes they share.

    With a floor on quality the cheapest size that reaches it (`Candidate.effort`), else the best one, within the budgets
    of milliseconds to encode a query and of bytes per passage. Raises UserError for files without costs that a budget
    needs, and, saying what is nearest, when nothing fits.
    """
    paths = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    files = {str(path): read_results(path) for path in paths}
    labels = sorted({results.label for results in files.values()})
    if len(labels) > 1:
        raise UserError(f"these are of several models: {', '.join(labels)}", "choose for one at a time")
    some, measure = candidates(files, measure)
    fitting = some
    for flag, unit, budget in (
        ("budget_ms", MILLISECONDS, budget_ms),
        ("bytes_per_passage", BYTES, bytes_per_passage),
    ):
        if budget is not None:
            fitting = _within(fitting, flag, unit, budget)
    best, reason = _best(fitting, min_quality, measure)
    if budget_ms is not None:
        _warn_of_a_busy_machine(files)
    names = list(some[0].by_dataset)
    model_sizes = propose_sizes(some, auto_sizes) if auto_sizes is not None else None
    return SizeChoice(best, reason, front(some), knee(some), measure, names, model_sizes)


def _warn_of_a_busy_machine(files: Mapping[str, Results]) -> None:
    for path, results in files.items():
        if not results.more.get("costs"):
            continue
        how = results.more.get("costs_measured")
        if isinstance(how, Mapping) and how.get("busy"):
            log.warning(
                "the milliseconds in %s were measured on a busy machine: %s\n  try: grid --measure_cost when it is quiet",
                *(path, how["busy"]),
            )
        return  # the first file with costs is the one that counts


def _within(some: Sequence[Candidate], flag: str, unit: str, budget: float) -> list[Candidate]:
    if unit not in some[0].costs:
        raise UserError(f"--{flag} needs {unit}, which was not measured", "run grid with --measure_cost")
    fitting = [one for one in some if one.costs[unit] <= budget]
    if not fitting:
        least = min(some, key=lambda one: one.costs[unit])
        raise UserError(
            f"no size fits --{flag} {format_number(budget)}",
            f"the least is {format_number(least.costs[unit])}, at {least.size}",
        )
    return fitting


def _best(fitting: Sequence[Candidate], floor: float | None, measure: str) -> tuple[Candidate, str]:
    most = max(fitting, key=lambda one: (one.quality, -one.effort))
    if floor is None:
        return most, f"the highest {measure} that fits"
    enough = [one for one in fitting if one.quality >= floor]
    if not enough:
        raise UserError(
            f"nothing that fits reaches --min_quality {floor:g}", f"the best is {most.quality:.4f}, at {most.size}"
        )
    return min(enough, key=lambda one: (one.effort, -one.quality)), f"the cheapest that reaches {floor:g}"
