"""The plan as a table and as JSON: what the door of `search` prints for --plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.estimate.arguments import PlanArguments, model_sizes
from starbucks_retrieval.search.estimate.machine import Machine
from starbucks_retrieval.search.estimate.measure import measure_machine
from starbucks_retrieval.search.estimate.model import EstimateRow, estimate
from starbucks_retrieval.store import open_store
from starbucks_retrieval.store.info import readable


@dataclass(frozen=True)
class Estimates:
    """A machine, and what searching `passages` would take on it."""

    machine: Machine
    passages: int
    rows: list[EstimateRow]

    def __str__(self) -> str:
        machine, batches = self.machine, list(self.machine.rates)
        times = [f"ms at {batch}" for batch in batches]
        lines = [("size", "way", "on disk", "in memory", "at least", "fetched", *times, "searched with")]
        for row in self.rows:
            sizes = (readable(row.disk), readable(row.memory) + ("" if row.fits else " *"), readable(row.least))
            shown = (f"{row.milliseconds[batch]:,.{0 if row.milliseconds[batch] >= 100 else 2}f}" for batch in batches)
            lines.append((str(row.size), row.way, *sizes, str(row.fetched), *shown, row.settings))
        notes = [
            f"{self.passages:,} passages in {machine.store_dtype}, {machine.depth} results a query; measured: {machine}",
            *align_columns(lines, "ll" + "r" * (len(lines[0]) - 3) + "l"),
            "in memory: what has to stay there for these times; at least: what it works with, reading the rest as it goes",
            "fetched: stored vectors that a query reads; ms at B: milliseconds of a query when B are searched at once",
        ]
        if not all(row.fits for row in self.rows):
            notes.append(f"*: more than the {readable(machine.memory)} of this machine; times are as if it had as much")
        return "\n".join(notes)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        rows = [row.to_json() for row in self.rows]
        return {"passages": self.passages, "machine": self.machine.to_json(), "rows": rows}


def plan_search(
    asked: PlanArguments,
    sizes: str | None,
    *,
    passage_reps: str | None = None,
    model_name_or_path: str | None = None,
    depth: int | None = None,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    seed: int = 42,
) -> Estimates:
    """Measure this machine and estimate every way to search at the sizes named. `depth`: 1000 unless given.

    Raises UserError for sizes that nothing tells, a depth below 1, and a number of passages that nobody names.
    """
    planned = model_sizes(sizes, passage_reps, model_name_or_path)
    depth = 1000 if depth is None else depth
    if depth < 1:
        raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
    passages = asked.passages
    if passages is None:
        if not passage_reps:
            raise UserError("--passages is missing", "say for how many to plan, such as --passages 1e9")
        passages = open_store(passage_reps, planned[0]).count
    machine = measure_machine(
        depth=depth, batches=asked.batches, store_dtype=asked.store_dtype, threads=threads, seed=seed
    )
    return Estimates(machine, round(passages), estimate(machine, passages, planned, max_memory=max_memory))
