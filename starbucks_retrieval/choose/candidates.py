"""Sizes with their quality and cost, which of them nothing beats, and where the front bends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Results
from starbucks_retrieval.sizes import Size

BYTES, MILLISECONDS = "bytes_per_passage", "query_ms"
_HALF = 2  # bytes of a number as `encode` stores it by default


@dataclass(frozen=True)
class Candidate:
    """A size, its quality (mean over data sets) and what it costs, in units that the names of costs tell.

    `effort` compares costs of different units: the sum of the logarithms of bytes per passage and of milliseconds a
    query, where those were measured, or else of layers.
    """

    size: Size
    quality: float
    costs: Mapping[str, float]
    by_dataset: Mapping[str, float] = field(default_factory=dict)

    @property
    def effort(self) -> float:
        """See the class."""
        return math.log(self.costs[BYTES]) + math.log(self.costs.get(MILLISECONDS, self.size.layer))

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "size": str(self.size),
            "quality": self.quality,
            **self.costs,
            **({"by_dataset": dict(self.by_dataset)} if len(self.by_dataset) > 1 else {}),
        }


def candidates(files: Mapping[str, Results], measure: str | None = None) -> tuple[list[Candidate], str]:
    """The sizes that every data set of all files was measured at, ascending, and the measure.

    `files`: results by a name for messages. A size that a data set lacks is left out and told of. Costs are the first
    file's that has any; without any, bytes per passage are those of float16. Raises UserError for results that hold
    no sizes, several measures where none is named, one data set measured twice, and costs that miss a size.
    """
    measure = _measure(files, measure)
    found: dict[str, dict[Size, float]] = {}
    for name, results in files.items():
        if results.kind == "deltas":
            raise UserError(f"{name} holds deltas, not qualities", "name the grids themselves")
        for cell in results.cells:
            # Queries of another size than passages are no size that one could deploy alone.
            if cell.measure != measure or cell.size is None or cell.passage_size not in (None, cell.size):
                continue
            own = found.setdefault(cell.dataset, {})
            if cell.size in own:
                raise UserError(f"{cell.dataset} is measured twice at {cell.size}, again in {name}", "drop one file")
            own[cell.size] = cell.value
    if not found:
        raise UserError(f"no size is measured by {measure} in {', '.join(files)}", "name what `starbucks grid` wrote")
    seen = {size for own in found.values() for size in own}
    whole = sorted(size for size in seen if all(math.isfinite(own.get(size, math.nan)) for own in found.values()))
    if missing := sorted(seen - set(whole)):
        log.warning("left out, not measured on every data set: %s", ", ".join(map(str, missing)))
    if not whole:
        raise UserError(f"no size is measured on all of {', '.join(found)}", "measure the data sets at the same sizes")
    costs = _costs(files, whole)
    made = []
    for size in whole:
        values = {dataset: own[size] for dataset, own in found.items()}
        made.append(Candidate(size, sum(values.values()) / len(values), costs[size], values))
    return made, measure


def front(some: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other one dominates: none is as good at every cost and better in one. Cheapest first."""
    return sorted((one for one in some if not any(_dominates(other, one) for other in some)), key=_cheapest)


def knee(some: Sequence[Candidate]) -> Candidate:
    """Where the front bends: the one farthest above the line from its cheapest to its best.

    Over effort and quality, each brought to the range from 0 to 1. Source: the idea of Satopää et al., Finding a
    "Kneedle" in a Haystack (2011), without its smoothing.
    """
    points = front(some)
    first, last = points[0], max(points, key=_best)
    width, height = last.effort - first.effort, last.quality - first.quality
    if width <= 0 or height <= 0:
        return last
    return max(points, key=lambda one: (one.quality - first.quality) / height - (one.effort - first.effort) / width)


def _dominates(other: Candidate, one: Candidate) -> bool:
    pairs = [(other.costs[name], one.costs[name]) for name in (BYTES, MILLISECONDS) if name in one.costs]
    if MILLISECONDS not in one.costs:
        pairs.append((other.size.layer, one.size.layer))
    pairs.append((-other.quality, -one.quality))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _cheapest(one: Candidate) -> tuple[float, float, Size]:
    return one.effort, -one.quality, one.size


def _best(one: Candidate) -> tuple[float, float]:
    return one.quality, -one.effort


def _measure(files: Mapping[str, Results], measure: str | None) -> str:
    there = list(dict.fromkeys(c.measure for results in files.values() for c in results.cells if c.size is not None))
    if not there:
        raise UserError(f"no sizes in {', '.join(files)}", "name what `starbucks grid` or `sts` wrote with --output")
    if measure is None and len(there) > 1:
        raise UserError(f"several measures: {', '.join(there)}", f"choose by one: --measure {there[0]}")
    if measure is not None and measure not in there:
        raise UserError(f"nothing is measured by {measure}", f"there is {', '.join(there)}")
    return measure or there[0]


def _costs(files: Mapping[str, Results], sizes: Sequence[Size]) -> dict[Size, dict[str, float]]:
    nothing: tuple[str, Any] = ("", {})
    name, given = next(
        ((name, results.more["costs"]) for name, results in files.items() if results.more.get("costs")), nothing
    )
    if not given:
        log.warning("no costs in these files: bytes per passage are those of float16, %d a number", _HALF)
        return {size: {BYTES: float(_HALF * size.dim)} for size in sizes}
    try:
        costs = {
            size: {unit: float(value) for unit, value in own.items()}
            for size in sizes
            if (own := given.get(str(size))) is not None
        }
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"the costs in {name} cannot be read", "measure again") from None
    if absent := [size for size in sizes if BYTES not in costs.get(size, {})]:
        raise UserError(f"{name} has no {BYTES} for {absent[0]}", "measure costs and quality at the same sizes")
    timed = [size for size in sizes if MILLISECONDS in costs[size]]
    if timed and len(timed) < len(sizes):
        untimed = next(size for size in sizes if size not in timed)
        raise UserError(f"{name} has {MILLISECONDS} for some sizes and not for {untimed}", "measure all with grid")
    if any(not (math.isfinite(cost) and cost > 0) for own in costs.values() for cost in own.values()):
        raise UserError(f"{name} has a cost that is not positive", "measure again")
    return costs
