"""The best size to deploy from measured quality and cost, and sizes for the next training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.choose.candidates import (
    BYTES,
    MILLISECONDS,
    PASSAGE_MILLISECONDS,
    QUERY,
    SEARCH,
    SizeCandidate,
    build_candidates,
    find_knee,
    pareto_front,
    propose_sizes,
    searched_passages,
)
from starbucks_retrieval.cli import as_flag_values, flag, format_number, log
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.results import Results, read_results
from starbucks_retrieval.sizes import Sizes

__all__ = [
    "ChooseArguments",
    "SizeCandidate",
    "SizeChoice",
    "build_candidates",
    "choose",
    "find_knee",
    "pareto_front",
    "propose_sizes",
]
__dir__ = public_names(__name__)
_KEPT = 0.9  # of the quality of the full size, to be worth a recommendation
_CHEAP = 0.5  # of its bytes, at most
# The costs that each flag limits; they add up, and the first one must be measured.
_BUDGETS = {"budget_ms": QUERY, "passage_ms": (PASSAGE_MILLISECONDS,), "bytes_per_passage": (BYTES,)}
_FASTER = "search takes most of the time: a funnel or an index may take less (search --funnel auto --qrels)"


@dataclass
class ChooseArguments:
    """Choice"""

    input: list[str] = flag(None, "result files of one model with cells at sizes, as grid and sts write", required=True)
    measure: str | None = flag(None, "measure of quality, averaged over data sets (default: the only one)")
    budget_ms: float | None = flag(None, "milliseconds to encode a query and search; needs grid --measure_cost")
    passages: float | None = flag(
        None, "passages that will be searched, such as 1e6 (default: those that grid searched)"
    )
    passage_ms: float | None = flag(None, "milliseconds to encode a passage, once; likewise")
    bytes_per_passage: float | None = flag(None, "bytes of a stored vector")
    min_quality: float | None = flag(None, "choose the cheapest size that reaches this, not the best one")
    auto_sizes: int | None = flag(None, "propose this many sizes for the next training")

    def __post_init__(self) -> None:
        as_flag_values(self)
        if self.passages is not None and not 1 <= self.passages < math.inf:
            raise UserError(f"--passages {self.passages:g} is not a number of passages", "give 1 or more, such as 1e6")


@dataclass(frozen=True)
class SizeChoice:
    """The result of `choose`.

    Args:
        best: The size to deploy.
        reason: Why it is the best, in words.
        front: The Pareto front, cheapest first.
        knee: Its knee.
        measure: The measure of quality.
        datasets: The data sets it is averaged over.
        model_sizes: Sizes for the next training, if they were requested.
        notes: Sentences about the choice: a size that the model was not made for, or a cheaper way.
    """

    best: SizeCandidate
    reason: str
    front: list[SizeCandidate]
    knee: SizeCandidate
    measure: str
    datasets: list[str]
    model_sizes: Sizes | None = None
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "measure": self.measure,
            "datasets": self.datasets,
            "best": self.best.to_json(),
            "reason": self.reason,
            "knee": self.knee.to_json(),
            "front": [one.to_json() for one in self.front],
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"sizes": str(self.model_sizes)} if self.model_sizes is not None else {}),
        }

    def table(self) -> str:
        """Return the front as aligned text, cheapest first; `*` marks the best size, `k` the knee."""
        units = list(self.front[0].costs)
        rows = [["", "size", self.measure, *units]]
        for one in self.front:  # the best size within any budget is on the front
            marks = ("*" if one is self.best else "") + ("k" if one is self.knee else "")
            costs = [format_number(one.costs[unit]) for unit in units]
            rows.append([marks, one.name, f"{one.quality:.4f}", *costs])
        return "\n".join(align_columns(rows, "r"))


def choose(arguments: ChooseArguments) -> SizeChoice:
    """Choose the best size within a budget, or the cheapest size that is good enough.

    Args:
        arguments: The flags of `starbucks choose`: result files of one model, a measure and budgets.

    Raises:
        UserError: No size fits (the hint names the nearest one), the files are of several models, or they lack costs
            that a budget needs.

    Example:
        >>> choose(ChooseArguments("grid.json", budget_ms=5)).best.name  # doctest: +SKIP
        '4:128'
    """
    files = {path: read_results(path) for path in arguments.input}
    labels = sorted({results.label for results in files.values()})
    if len(labels) > 1:
        raise UserError(f"these are of several models: {', '.join(labels)}", "choose for one at a time")
    candidates, measure = build_candidates(files, arguments.measure, arguments.passages)
    fitting = candidates
    for name in _BUDGETS:
        if (budget := getattr(arguments, name)) is not None:
            fitting = _within_budget(fitting, name, budget)
    best, reason = _best(fitting, arguments.min_quality, measure)
    if arguments.budget_ms is not None or arguments.passage_ms is not None:
        _warn_of_busy_machine(files)
    return SizeChoice(
        best=best,
        reason=reason,
        front=pareto_front(candidates),
        knee=find_knee(candidates),
        measure=measure,
        datasets=list(candidates[0].by_dataset),
        model_sizes=propose_sizes(candidates, arguments.auto_sizes) if arguments.auto_sizes is not None else None,
        notes=[*_times(best, arguments, files), *advise(best, candidates, fitting, files, measure)],
    )


def _warn_of_busy_machine(files: Mapping[str, Results]) -> None:
    """Warn if the costs that count, those of the first file that has any, were measured on a busy machine."""
    path, more = next((path, results.more) for path, results in files.items() if results.more.get("costs"))
    how = more.get("costs_measured")
    if isinstance(how, Mapping) and how.get("busy"):
        log.warning(
            "the milliseconds in %s were measured on a busy machine: %s\n  try: grid --measure_cost when it is idle",
            *(path, how["busy"]),
        )


def _times(best: SizeCandidate, arguments: ChooseArguments, files: Mapping[str, Results]) -> list[str]:
    """Say what the milliseconds of a query consist of, where a flag asks for them, and how search may take fewer."""
    if arguments.budget_ms is None and arguments.passages is None:
        return []
    if SEARCH not in best.costs:
        log.warning(
            "--budget_ms counts encoding alone: search was not timed\n  try: measure with grid --measure_cost again"
        )
        return []
    encode, search = best.costs[MILLISECONDS], best.costs[SEARCH]
    shown = f"{format_number(encode, 3)} ms to encode a query, {format_number(search, 3)} ms to search"
    note = f"{best.name}: {shown} {arguments.passages or searched_passages(files) or 0:,.0f} passages exactly"
    return [note, _FASTER] if _searches_most(best) else [note]


def _within_budget(candidates: Sequence[SizeCandidate], flag: str, budget: float) -> list[SizeCandidate]:
    """Return the sizes whose costs that a flag limits are within a budget."""
    names = _BUDGETS[flag]
    if names[0] not in candidates[0].costs:
        raise UserError(f"--{flag} needs {names[0]}, which was not measured", "run grid with --measure_cost")
    fitting = [one for one in candidates if one.cost(names) <= budget]
    if not fitting:
        least = min(candidates, key=lambda one: one.cost(names))
        hint = f"the least is {format_number(least.cost(names))}, at {least.name}"
        if SEARCH in names and _searches_most(least):
            hint = f"{hint}; {_FASTER}"
        raise UserError(f"no size fits --{flag} {format_number(budget)}", hint)
    return fitting


def _searches_most(one: SizeCandidate) -> bool:
    return one.costs.get(SEARCH, 0.0) > one.costs[MILLISECONDS]


def _best(fitting: Sequence[SizeCandidate], min_quality: float | None, measure: str) -> tuple[SizeCandidate, str]:
    """Return the size to deploy, and why."""
    best = max(fitting, key=lambda one: (one.quality, -one.log_cost))
    if min_quality is None:
        return best, f"the highest {measure} that fits"
    good_enough = [one for one in fitting if one.quality >= min_quality]
    if not good_enough:
        raise UserError(
            f"nothing that fits reaches --min_quality {min_quality:g}",
            f"the best is {best.quality:.4f}, at {best.name}",
        )
    cheapest = min(good_enough, key=lambda one: (one.log_cost, -one.quality))
    return cheapest, f"the cheapest that reaches {min_quality:g}"


def advise(
    best: SizeCandidate,
    candidates: Sequence[SizeCandidate],
    fitting: Sequence[SizeCandidate],
    files: Mapping[str, Results],
    measure: str,
) -> list[str]:
    """Return sentences about the choice, none of which may apply.

    Args:
        best: The chosen size.
        candidates: All measured sizes.
        fitting: Those within the budgets.
        files: The result files by name; `grid` and `sts` record the sizes that the model was made for.
        measure: The measure of quality.
    """
    return [*_untrained(best, files), *_width_cut(candidates, fitting, measure)]


def _untrained(best: SizeCandidate, files: Mapping[str, Results]) -> list[str]:
    more = next((results.more for results in files.values() if results.more.get("model_sizes")), None)
    if more is None:
        return []
    made_for, layers = Sizes.parse(str(more["model_sizes"])), more.get("fitted_layers", [])
    chosen = dict.fromkeys((best.size, best.passage_size or best.size))
    other = [str(size) for size in chosen if size not in made_for.members and size.layer not in layers]
    if not other:
        return []
    names = " and ".join(other)
    return [
        f"{names} {'was' if len(other) == 1 else 'were'} neither trained nor fitted (the model has {made_for}): "
        "try fit, or train --sizes"
    ]


def _width_cut(candidates: Sequence[SizeCandidate], fitting: Sequence[SizeCandidate], measure: str) -> list[str]:
    """Recommend the narrowest size of all layers, if it keeps the quality and fewer layers of its width do not."""
    alone = [one for one in candidates if one.passage_size is None]
    if not alone:
        return []
    full = max(alone, key=lambda one: one.size)
    if any(one.size.dim > full.size.dim for one in alone):
        return []
    cuts = [
        one
        for one in fitting
        if one.passage_size is None and one.size.layer == full.size.layer
        if one.quality >= _KEPT * full.quality > 0 and one.costs[BYTES] <= _CHEAP * full.costs[BYTES]
    ]
    if not cuts:
        return []
    cut = min(cuts, key=lambda one: one.size)
    shallow = [one for one in alone if one.size.layer < cut.size.layer and one.size.dim <= cut.size.dim]
    if not shallow:
        return []
    rival = max(shallow, key=lambda one: one.quality)
    if rival.quality >= _KEPT * full.quality:
        return []
    kept, bytes_, less = (
        f"{value:.0%}"
        for value in (cut.quality / full.quality, cut.costs[BYTES] / full.costs[BYTES], rival.quality / full.quality)
    )
    return [
        f"cheap: {cut.name}, all layers and a cut width, keeps {kept} of the {measure} of {full.name} in {bytes_} of "
        f"its bytes; {rival.name} keeps {less}"
    ]
