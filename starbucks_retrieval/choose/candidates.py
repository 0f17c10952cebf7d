"""Sizes with their quality and cost: the Pareto front, its knee, and nested sizes for the next training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Results
from starbucks_retrieval.sizes import Size, Sizes, pair_name

BYTES, MILLISECONDS, PASSAGE_MILLISECONDS = "bytes_per_passage", "query_ms", "passage_ms"
SEARCH, _PER_MILLION = "search_ms", "search_ms_per_million"
QUERY = (MILLISECONDS, SEARCH)  # what a user waits for
_FLOAT16_BYTES = 2
_LAYER_0 = 0.1  # of the cost of a layer, where no milliseconds were measured


@dataclass(frozen=True)
class SizeCandidate:
    """A size with its quality and cost.

    Args:
        size: The size of the queries, mostly of the passages too.
        quality: The mean of the measure over the data sets.
        costs: Costs by name: `bytes_per_passage`, and `query_ms`, `passage_ms` and `search_ms` if they were measured.
        by_dataset: The measure of each data set.
        passage_size: The size of the passages, if their layer is another one.
    """

    size: Size
    quality: float
    costs: Mapping[str, float]
    by_dataset: Mapping[str, float] = field(default_factory=dict)
    passage_size: Size | None = None

    @property
    def name(self) -> str:
        """The size, such as `6:128`, or `1:128/6:128` (queries/passages)."""
        return pair_name(self.size, self.passage_size)

    def cost(self, names: Sequence[str]) -> float:
        """Return the sum of some costs; one that was not measured counts as 0.

        Args:
            names: Names in `costs`, all of one unit.

        Example:
            >>> SizeCandidate(Size(2, 8), 0.5, {"query_ms": 3.0, "search_ms": 1.5}).cost(["query_ms", "search_ms"])
            4.5
        """
        return math.fsum(self.costs.get(name, 0.0) for name in names)

    @property
    def query_cost(self) -> float:
        """The milliseconds to encode and search a query, or the layers of the query where they were not measured."""
        if MILLISECONDS not in self.costs:
            return self.size.layer or _LAYER_0
        return self.cost(QUERY)

    @property
    def log_cost(self) -> float:
        """The costs as one number: log(bytes per passage) + log(milliseconds per query, or layers without them)."""
        return math.log(self.costs[BYTES]) + math.log(self.query_cost)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "size": str(self.size),
            **({"passage_size": str(self.passage_size)} if self.passage_size is not None else {}),
            "quality": self.quality,
            **self.costs,
            **({"by_dataset": dict(self.by_dataset)} if len(self.by_dataset) > 1 else {}),
        }


def build_candidates(
    files: Mapping[str, Results], measure: str | None = None, passages: float | None = None
) -> tuple[list[SizeCandidate], str]:
    """Return the sizes that were measured on every data set, ascending, and the measure.

    A size that some data set lacks is left out with a warning. Costs are those of the first file that has any; without
    costs, bytes per passage are those of float16. A grid of `--asymmetric` of a model whose layers share one space also
    has candidates with queries of another layer than passages.

    Args:
        files: Results by file name.
        measure: The measure; may be left out if there is only one.
        passages: Passages of the collection that `search_ms` is stated for; None for those that were searched.

    Raises:
        UserError: There are no sizes, several measures, a data set measured twice, a size without costs, or `passages`
            without a measured search.
    """
    measure = _choose_measure(files, measure)
    values: dict[str, dict[tuple[Size, Size], float]] = {}
    for name, results in files.items():
        if results.kind == "deltas":
            raise UserError(f"{name} holds deltas, not qualities", "name the grids themselves")
        for cell in results.cells:
            if cell.measure != measure or cell.size is None:
                continue
            pair = cell.size, cell.passage_size or cell.size
            if pair[0] != pair[1] and not results.more.get("shared_space"):
                continue  # search would refuse them
            by_size = values.setdefault(cell.dataset, {})
            if pair in by_size:
                raise UserError(
                    f"{cell.dataset} is measured twice at {pair_name(*pair)}, again in {name}", "drop one file"
                )
            by_size[pair] = cell.value
    if not values:
        raise UserError(f"no size is measured by {measure} in {', '.join(files)}", "name what `starbucks grid` wrote")
    measured = {size for by_size in values.values() for size in by_size}
    complete = sorted(
        size for size in measured if all(math.isfinite(by_size.get(size, math.nan)) for by_size in values.values())
    )
    if missing := sorted(measured - set(complete)):
        log.warning("left out, not measured on every data set: %s", ", ".join(pair_name(*pair) for pair in missing))
    if not complete:
        raise UserError(f"no size is measured on all of {', '.join(values)}", "measure the data sets at the same sizes")
    costs = _read_size_costs(files, sorted({size for pair in complete for size in pair}), passages)
    found = []
    for pair in complete:
        size, passage_size = pair
        by_dataset = {dataset: by_size[pair] for dataset, by_size in values.items()}
        # The query is encoded at its own layer; all other costs are those of the passages.
        of_pair = costs[passage_size] | {unit: costs[size][unit] for unit in (MILLISECONDS,) if unit in costs[size]}
        quality = sum(by_dataset.values()) / len(by_dataset)
        other = passage_size if passage_size != size else None
        found.append(SizeCandidate(size, quality, of_pair, by_dataset, other))
    return found, measure


def pareto_front(candidates: Sequence[SizeCandidate]) -> list[SizeCandidate]:
    """Return the candidates that no other one equals or beats in quality and every cost, cheapest first.

    Example:
        >>> sizes = [(Size(2, 8), 0.5), (Size(2, 16), 0.4), (Size(4, 16), 0.6)]
        >>> candidates = [SizeCandidate(size, quality, {"bytes_per_passage": 2 * size.dim}) for size, quality in sizes]
        >>> [str(one.size) for one in pareto_front(candidates)]
        ['2:8', '4:16']
    """
    front = [one for one in candidates if not any(_dominates(other, one) for other in candidates)]
    return sorted(front, key=lambda one: (one.log_cost, -one.quality, one.size, one.passage_size or one.size))


def find_knee(candidates: Sequence[SizeCandidate]) -> SizeCandidate:
    """Return the candidate on the Pareto front after which more cost improves quality less.

    It is the point farthest above the line from the cheapest to the best point, with `log_cost` and quality scaled to
    the range from 0 to 1. Source: Satopää et al., Finding a "Kneedle" in a Haystack (2011), without its smoothing.

    Args:
        candidates: At least one, in any order.

    Returns:
        The knee; the candidate of highest quality if the front has only one point.

    Example:
        >>> sizes = [(Size(2, 8), 0.5), (Size(4, 16), 0.7), (Size(6, 32), 0.72)]
        >>> candidates = [SizeCandidate(size, quality, {"bytes_per_passage": 2 * size.dim}) for size, quality in sizes]
        >>> str(find_knee(candidates).size)
        '4:16'
    """
    points = pareto_front(candidates)
    first, last = points[0], max(points, key=lambda one: (one.quality, -one.log_cost))
    width, height = last.log_cost - first.log_cost, last.quality - first.quality
    if width <= 0 or height <= 0:
        return last
    return max(points, key=lambda one: (one.quality - first.quality) / height - (one.log_cost - first.log_cost) / width)


def propose_sizes(candidates: Sequence[SizeCandidate], count: int) -> Sizes:
    """Return the best nested sizes to train next: layer and dim never fall, and the last is the full size.

    The best sizes have the largest area under quality against `log_cost`. With a budget drawn evenly from that axis, a
    user takes the largest size that fits and gets its quality, or nothing below the smallest size. The search is a
    dynamic program over all candidates.

    Args:
        candidates: The sizes to choose from.
        count: How many sizes to return.

    Raises:
        UserError: The full size is not a candidate, or the candidates hold no chain of `count` nested sizes.
    """
    ordered = sorted((one for one in candidates if one.passage_size is None), key=lambda one: one.size)
    if not ordered:
        raise UserError("no size is measured for both queries and passages", "measure them with grid")
    full = Size(max(one.size.layer for one in ordered), max(one.size.dim for one in ordered))
    if full not in [one.size for one in ordered]:
        raise UserError(f"the full size {full} is not measured, and the sizes must include it", "measure it with grid")
    if count < 1:
        raise UserError(f"--auto_sizes {count} is below 1", "ask for one size or more")
    # best[i]: area and positions of the best chain so far that ends at ordered[i].
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, (i,)) for i in range(len(ordered))]
    for length in range(2, count + 1):
        longer: list[tuple[float, tuple[int, ...]] | None] = [None] * len(ordered)
        for i, upper in enumerate(ordered):
            options = []
            for j, lower in enumerate(ordered):
                chain = best[j]
                if chain is not None and _is_nested(lower.size, upper.size):
                    area = chain[0] + lower.quality * (upper.log_cost - lower.log_cost)
                    options.append((area, (*chain[1], i)))
            # Of equal areas take the smaller sizes, so that the result does not depend on the order of the file.
            longer[i] = min(options, key=lambda option: (-option[0], option[1])) if options else None
        if longer[-1] is None:
            raise UserError(
                f"no {length} of the measured sizes are nested, up to {full}", f"ask for --auto_sizes {length - 1}"
            )
        best = longer
    chain = best[-1]
    assert chain is not None  # the full size is the greatest, and a chain reaches it
    return Sizes(ordered[i].size for i in chain[1])


def _is_nested(lower: Size, upper: Size) -> bool:
    return lower != upper and lower.layer <= upper.layer and lower.dim <= upper.dim


def _dominates(other: SizeCandidate, one: SizeCandidate) -> bool:
    scales = [(each.costs[BYTES], each.query_cost, -each.quality) for each in (other, one)]
    return scales[0] != scales[1] and all(a <= b for a, b in zip(*scales))


def _choose_measure(files: Mapping[str, Results], measure: str | None) -> str:
    known = list(dict.fromkeys(c.measure for results in files.values() for c in results.cells if c.size is not None))
    if not known:
        raise UserError(f"no sizes in {', '.join(files)}", "name what `starbucks grid` or `sts` wrote with --output")
    if measure is None and len(known) > 1:
        raise UserError(f"several measures: {', '.join(known)}", f"choose by one: --measure {known[0]}")
    if measure is not None and measure not in known:
        raise UserError(f"nothing is measured by {measure}", f"the files have {', '.join(known)}")
    return measure or known[0]


def searched_passages(files: Mapping[str, Results]) -> int | None:
    """Return over how many passages search was timed; None if it was not. Raises UserError if the file is damaged."""
    name, more = next(((name, results.more) for name, results in files.items() if results.more.get("costs")), ("", {}))
    try:
        found = more["costs_measured"]["search"]["passages"]
    except (KeyError, TypeError):
        return None
    if not isinstance(found, int) or found < 1:
        raise UserError(f"the costs in {name} cannot be read", "measure again")
    return found


def _read_size_costs(
    files: Mapping[str, Results], sizes: Sequence[Size], passages: float | None
) -> dict[Size, dict[str, float]]:
    """Return the costs of every size by name, from the first file that has costs."""
    with_costs = ((name, results.more["costs"]) for name, results in files.items() if results.more.get("costs"))
    name, given = next(with_costs, ("", None))
    searched = searched_passages(files)
    if passages is not None and searched is None:
        raise UserError(f"--passages needs {SEARCH}, which was not measured", "run grid with --measure_cost")
    if given is None:
        log.warning("no costs in these files: bytes per passage are those of float16, %d a number", _FLOAT16_BYTES)
        return {size: {BYTES: float(_FLOAT16_BYTES * size.dim)} for size in sizes}
    try:
        costs = {
            size: {unit: float(value) for unit, value in record.items()}
            for size in sizes
            if (record := given.get(str(size))) is not None
        }
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise UserError(f"the costs in {name} cannot be read", "measure again") from None
    if absent := [size for size in sizes if BYTES not in costs.get(size, {})]:
        raise UserError(f"{name} has no {BYTES} for {absent[0]}", "measure costs and quality at the same sizes")
    for unit in (MILLISECONDS, PASSAGE_MILLISECONDS, SEARCH, *([_PER_MILLION] if searched else [])):
        timed = [size for size in sizes if unit in costs[size]]
        if timed and len(timed) < len(sizes):
            untimed = next(size for size in sizes if size not in timed)
            raise UserError(f"{name} has {unit} for some sizes and not for {untimed}", "measure all with grid")
    if any(not (math.isfinite(cost) and cost > 0) for record in costs.values() for cost in record.values()):
        raise UserError(f"{name} has a cost that is not positive", "measure again")
    for record in costs.values():
        more = record.pop(_PER_MILLION, 0.0)
        if searched and passages is not None and SEARCH in record:
            record[SEARCH] *= min(1.0, passages / searched)
            record[SEARCH] += more * max(0.0, passages - searched) / 1e6
    return costs
