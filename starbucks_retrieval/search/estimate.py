"""Estimating exact search and funnels for `search --plan` and `--dry_run`, from the measured rates of this machine.

For N passages at dim d, k results per query and B queries at once, with the names of `MachineRates`, one query takes

- fetched(n): n × fetching(d) + opening × S × (1 - exp(-n B / S)) / B, in a store of S = ⌈N / 16384⌉ shards;
- flat: N × scan(d) + choose × kept(n, k) for each block of n passages + (N d × reading + S × opening) / B + fetched(k),
  with a few more than k; kept(n, k) = k (1 + ln(n / k)) of n scores in random order enter a list of the k best. Fewer than
  16 queries read float16 stores in one block and without the reading, which converts to float32;
- funnel: flat at the smallest size, and fetched(shortlist) at the other, with `rescoring` for `fetching`;

and `call` / B in each. All data is assumed to be in memory: where `fits` is no, reading from disk comes on top. Embedding
a query, reading ids and writing a run are not included. Approximate indexes are not estimated: their time depends on the
data, and an earlier model was wrong by a factor of two to three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import PlanArguments, SearchArguments
from starbucks_retrieval.search.engines import MAX_MEMORY, MemoryPlan, plan_memory
from starbucks_retrieval.search.engines.float16_scan import scan_is_faster
from starbucks_retrieval.search.funnel import Funnel, FunnelStep, check_depth, grows
from starbucks_retrieval.search.machine import MachineRates, kept_of, measure_machine
from starbucks_retrieval.search.stores import stored_sizes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import open_store

_SHARD_ROWS = 16384  # as `encode` writes them
_SHORTLIST = 1000  # passages of the funnel's first step, or the depth where that is more


@dataclass(frozen=True)
class SearchEstimate:
    """The cost of one search at one size.

    Args:
        search: `flat`, or the steps of a funnel as `--funnel` takes them.
        size: The size whose scores the results have.
        disk: Bytes of the stores.
        memory: Bytes that must stay in memory for the times to hold.
        least_memory: Bytes with which it works, reading the rest from disk.
        milliseconds: Of one query, by the number of queries that are searched at once.
        fits: Whether this machine has `memory`.
        fetched: Stored vectors that a query reads by their row.
    """

    search: str
    size: Size
    disk: int
    memory: int
    least_memory: int
    milliseconds: dict[int, float]
    fits: bool
    fetched: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping with the keys of version 0.1."""
        values = asdict(self) | {"size": str(self.size)}
        return {"way": values.pop("search"), "least": values.pop("least_memory"), **values}


def estimate(
    machine: MachineRates, passages: float, sizes: Sequence[Size], *, max_memory: int = MAX_MEMORY
) -> list[SearchEstimate]:
    """Estimate exact search at each size, and a funnel from the first size to each larger one.

    Args:
        machine: Its depth, store type and batch sizes are those that are estimated.
        passages: Number of passages, whose ids are taken to be row numbers.
        sizes: The sizes, the smallest first.
        max_memory: Bytes for vectors and result lists.
    """
    model = _CostModel(machine, math.ceil(passages), max_memory)
    estimates = []
    for size in sizes:
        estimates.append(model.flat(size))
        if grows(sizes[0], size):
            estimates.append(model.funnel(sizes[0], size))
    return estimates


class _CostModel:
    def __init__(self, machine: MachineRates, passages: int, limit: int) -> None:
        self.machine, self.passages, self.limit = machine, passages, limit
        self.shards = -(-passages // _SHARD_ROWS)

    def flat(self, size: Size) -> SearchEstimate:
        """Exact search at one size."""
        plan = self._plan(size.dim, self.machine.depth)
        seconds = {batch: self._scanned(size.dim, plan, batch) for batch in self.machine.rates}
        return self._estimate("flat", size, self._disk(size), size, plan.candidates, seconds)

    def funnel(self, small: Size, size: Size) -> SearchEstimate:
        """A shortlist at the small size, scored at the other."""
        keep = min(max(_SHORTLIST, self.machine.depth), self.passages)
        plan = self._plan(small.dim, keep)
        rescored = keep * self.machine.rescoring(size.dim)
        seconds = {
            batch: self._scanned(small.dim, plan, batch) + rescored + self._opened(keep, batch)
            for batch in self.machine.rates
        }
        funnel = Funnel((FunnelStep(small, keep), FunnelStep(size)))
        return self._estimate(str(funnel), size, self._disk(small) + self._disk(size), small, keep, seconds)

    def _estimate(
        self, search: str, size: Size, disk: int, scanned: Size, fetched: int, seconds: dict[int, float]
    ) -> SearchEstimate:
        vectors = self._vectors(scanned)
        milliseconds = {batch: 1000 * (taken + self.machine.call / batch) for batch, taken in seconds.items()}
        least, fits = min(vectors, self.limit), vectors <= self.machine.memory
        return SearchEstimate(search, size, disk, vectors, least, milliseconds, fits, fetched)

    def _vectors(self, size: Size) -> int:
        return self.passages * size.dim * (2 if self.machine.store_dtype == "float16" else 4)

    def _disk(self, size: Size) -> int:
        return self._vectors(size) + self.passages * len(str(self.passages - 1))

    def _plan(self, dim: int, depth: int) -> MemoryPlan:
        return plan_memory(self.limit, -1, min(depth, self.passages), self.passages, dim)

    def _scanned(self, dim: int, plan: MemoryPlan, batch: int) -> float:
        rates, shared = self.machine.rates[batch], self.shards * self.machine.opening
        if scan_is_faster(batch, self.machine.store_dtype):
            blocks = 1
        else:
            blocks = -(-self.passages // plan.block_for(batch, dim))
            shared += self.passages * dim * self.machine.reading
        chosen = blocks * kept_of(self.passages / blocks, plan.candidates) * rates.choose
        fetched = plan.candidates * self.machine.fetching(dim) + self._opened(plan.candidates, batch)
        return self.passages * rates.scan(dim) + chosen + shared / batch + fetched

    def _opened(self, count: int, batch: int) -> float:
        return -self.shards * math.expm1(-count * batch / self.shards) * self.machine.opening / batch


@dataclass(frozen=True)
class SearchEstimates:
    """A machine, and the cost of searching `passages` on it.

    Attributes:
        machine: What was measured.
        passages: Number of passages.
        estimates: One row for each search, in the order of `estimate`.
    """

    machine: MachineRates
    passages: int
    estimates: list[SearchEstimate]

    def __str__(self) -> str:
        machine, batches = self.machine, list(self.machine.rates)
        rows = [("size", "search", "on disk", "in memory", "at least", "fetched", *(f"ms at {one}" for one in batches))]
        for row in self.estimates:
            memory = readable(row.memory) + ("" if row.fits else " *")
            times = (f"{row.milliseconds[one]:,.{0 if row.milliseconds[one] >= 100 else 2}f}" for one in batches)
            sizes = (readable(row.disk), memory, readable(row.least_memory), str(row.fetched))
            rows.append((str(row.size), row.search, *sizes, *times))
        remarks = [
            "in memory: what must stay there for these times; at least: what a search works with, reading the rest",
            "fetched: stored vectors that a query reads; ms at B: milliseconds of a query when B are searched at once",
        ]
        if not all(row.fits for row in self.estimates):
            remarks.append(
                f"*: more than the {readable(machine.memory)} of this machine; times assume that it had as much"
            )
        stored = f"{self.passages:,} passages in {machine.store_dtype}"
        title = f"{stored}, {machine.depth} results a query; measured: {machine}"
        return "\n".join([title, *align_columns(rows, "llr"), *remarks])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        rows = [row.to_json() for row in self.estimates]
        return {"passages": self.passages, "machine": self.machine.to_json(), "rows": rows}


def estimate_searches(
    arguments: SearchArguments, plan: PlanArguments, model_name_or_path: str | None = None, seed: int = 42
) -> SearchEstimates:
    """Measure this machine and estimate exact search and funnels, as `search --plan` does.

    Args:
        arguments: `sizes` or `size`, `depth`, `max_memory`, `threads`, and `passage_reps` for what `plan` leaves open.
        plan: Number of passages, batch size and store type.
        model_name_or_path: A model that names its sizes, where neither flags nor stores do.
        seed: Draws the vectors on which the machine is measured.

    Raises:
        UserError: Sizes or the number of passages are given nowhere, or the depth is below 1.
    """
    sizes = planned_sizes(arguments.sizes or arguments.size, arguments.passage_reps, model_name_or_path)
    depth = check_depth(1000 if arguments.depth is None else arguments.depth)
    passages = plan.passages
    if passages is None:
        if not arguments.passage_reps:
            raise UserError("--passages is missing", "give the number of passages, such as --passages 1e9")
        passages = open_store(arguments.passage_reps, sizes[0]).count
    machine = measure_machine(
        depth=depth, batches=plan.batches, store_dtype=plan.store_dtype, threads=arguments.threads, seed=seed
    )
    rows = estimate(machine, passages, sizes, max_memory=arguments.memory_bytes)
    return SearchEstimates(machine, round(passages), rows)


def planned_sizes(text: str | None, passage_reps: str | None = None, model_name_or_path: str | None = None) -> Sizes:
    """Return the sizes to plan for: `2:32,12:768`, or `all` (the default) that are stored or that a model names.

    Args:
        text: Sizes, aliases or `all`; None stands for `all`.
        passage_reps: Where passages are stored.
        model_name_or_path: A model, read where no passages are named.

    Raises:
        UserError: The text cannot be read, or it needs a store or a model and there is neither.
    """
    try:
        return Sizes.parse(text or "all")
    except UserError as error:
        if not passage_reps and not model_name_or_path:
            hint = "name the sizes, such as 2:32,6:128,12:768, or give --passage_reps or --model_name_or_path"
            raise UserError(error.what, hint) from None
    if passage_reps:
        return Sizes.parse(text or "all", Sizes(stored_sizes(passage_reps)))
    from starbucks_retrieval.models.info import model_info

    return Sizes.parse(text or "all", model_info(model_name_or_path or "").sizes)
