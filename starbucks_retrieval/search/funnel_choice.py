"""Choosing a funnel: the fastest on this machine that keeps a share of the full size's quality.

The first step scans a stored size, the first dims of the deepest one, or their codes, or asks an index that was built
beside the store. Times of funnels are estimated from measured parts, and what they find from ranks; the fastest that
keep enough are then searched and timed as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, IndexArguments
from starbucks_retrieval.search.engines import MAX_MEMORY, CandidateGenerator
from starbucks_retrieval.search.funnel import CODES, INDEX, Funnel, FunnelStep, check_depth
from starbucks_retrieval.search.funnel_candidates import (
    CUTOFF,
    MARGIN,
    Agreement,
    JudgedQuality,
    Measured,
    Qrels,
    Quality,
    Timer,
    cost,
    example,
    lower_share,
    stopwatch,
)
from starbucks_retrieval.search.funnel_first_steps import IndexStep, index_flags
from starbucks_retrieval.search.funnel_trials import Trials, first_steps, measure, with_index
from starbucks_retrieval.search.indexes.build import sample_rows
from starbucks_retrieval.search.stores import SlicedStore, check_together
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

KEEPS = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000)
_LONGEST = 200  # times the depth: no list is longer
_QUERIES = 500  # that are searched at most
_FINALISTS, _ROUNDS = 6, 5


@dataclass(frozen=True)
class FunnelChoice:
    """The chosen funnel and the figures it was chosen by.

    Args:
        funnel: The fastest funnel that keeps the target.
        full: The full size.
        target: Share of the full size's quality to keep.
        measure: `nDCG@10`, or `agreement@10` with the ten best of the full size where there are no judgements.
        score: Quality of the funnel over the queries.
        full_score: Quality of the full size alone.
        lowest_share: Lower bound of the share that it keeps on other queries like these.
        cost_ratio: How many times fewer numbers the funnel multiplies than the full size; None with an index, which
            does not count them.
        milliseconds: Measured time of a query through the funnel.
        full_milliseconds: Measured time of a query at the full size.
        batch: Queries that were searched at once.
        queries: Queries that were used.
        tried: Funnels that were compared.
        finalists: Funnels that were timed as a whole, with their milliseconds and shares.
        load_index: The folder of the index that the first step asks; None without.
        index_search: The parameters of its search, if it takes any.
    """

    funnel: Funnel
    full: Size
    target: float
    measure: str
    score: float
    full_score: float
    lowest_share: float
    cost_ratio: float | None
    milliseconds: float
    full_milliseconds: float
    batch: int
    queries: int
    tried: int
    finalists: list[dict[str, Any]]
    load_index: str | None = None
    index_search: str | None = None

    def flags(self, index: IndexArguments) -> tuple[FunnelArguments, IndexArguments]:
        """Return the flags of the search that was chosen.

        Args:
            index: The flags that `choose_stored_funnel` had. Of `index`, the index to build over the first size is kept.
        """
        if not index.index:
            index = replace(index, load_index=self.load_index, index_search=self.index_search)
        return FunnelArguments(str(self.funnel)), index

    def __str__(self) -> str:
        if self.funnel.sizes[0] == self.full and len(self.funnel.steps) == 1:
            return (
                f"none of {self.tried} funnels is faster than {self.full} alone and keeps {self.target:.1%} of its "
                f"{self.measure} {self.full_score:.4f}; searching at {self.full}, {self.milliseconds:.3f} ms a query"
            )
        asked = index_flags(self.load_index, self.index_search)
        fewer = f", {self.cost_ratio:.1f} times fewer numbers to multiply" if self.cost_ratio is not None else ""
        return (
            f"{self.funnel}{asked}: {self.measure} {self.score:.4f} of {self.full_score:.4f} at {self.full} "
            f"({self.score / self.full_score:.1%}, at least {self.lowest_share:.1%} on other queries), "
            f"{self.milliseconds:.3f} ms a query instead of {self.full_milliseconds:.3f} with {self.batch} at once{fewer}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return vars(self) | {"funnel": str(self.funnel), "full": str(self.full)}


def choose_funnel(
    queries: Mapping[Size, np.ndarray],
    query_ids: Sequence[str],
    stores: Mapping[Size, EmbeddingStore],
    qrels: Qrels | None = None,
    *,
    target: float = 0.99,
    depth: int = CUTOFF,
    keeps: Iterable[int] = KEEPS,
    max_steps: int = 3,
    codes: Iterable[str] = tuple(CODES),
    indexes: Iterable[IndexStep] = (),
    margin: float = MARGIN,
    tolerance: float = 0.15,
    batch_size: int = 1024,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
    generator: CandidateGenerator | None = None,
    seed: int = 42,
    timer: Timer = stopwatch,
) -> FunnelChoice:
    """Choose the fastest funnel that keeps a share of the full size's quality; of nearly as fast ones, the best.

    Quality is nDCG@10 over the judged queries, or the share of the exact ten best that is found. A funnel qualifies if
    the share that it keeps, less `margin` standard errors, is the target: so that other queries keep it too. The full
    size alone, which is the largest one, always qualifies. Vectors that are scanned are held in memory if they fit.

    Args:
        queries: Embeddings [queries, dim] for each size.
        query_ids: The ids of the queries.
        stores: The passages at each size; views of wider stores (`SlicedStore`) serve as first steps and alone.
        qrels: {query id: {docid: grade}}; None: compare with exact search.
        target: Share of the full size's quality to keep, in (0, 1].
        depth: Passages with which the funnel ends; every step keeps at least as many.
        keeps: List lengths to try, up to 200 times the depth.
        max_steps: Steps of a funnel at most.
        codes: Names of `CODES` to try for the deepest layer.
        indexes: Open indexes to try as first steps, from `index_steps`.
        margin: Standard errors.
        tolerance: A funnel is nearly as fast if it takes longer by no more than this share.
        batch_size: Queries that are searched at once; -1: as many as are timed.
        max_memory: Bytes for vectors and lists.
        threads: CPU threads; None: all.
        generator: Generates the candidates of exact search; FAISS on CPUs by default.
        seed: Draws the queries, if there are more than 500, and the passages that codes learn from.
        timer: Times a step.

    Raises:
        UserError: Queries, judgements and passages have no ids in common, there is only one size, or the target is
            outside (0, 1].
    """
    sizes = _checked_sizes(stores, target, depth)
    full = sizes[-1]
    used = _used(query_ids, qrels, seed)
    limits: dict[str, Any] = {"max_memory": max_memory, "threads": threads}
    search = Trials(
        {size: np.ascontiguousarray(queries[size][used], np.float32) for size in sizes},
        stores,
        limits | {"generator": generator, "batch_size": batch_size},
        seed,
    )
    judged = JudgedQuality([qrels[query_ids[row]] for row in used], stores[full]) if qrels is not None else None
    most = min(stores[full].count, _LONGEST * depth + 1)
    grid = sorted({keep for keep in (depth, *keeps) if depth <= keep < most})
    ends = [size for size in sizes if not isinstance(stores[size], SlicedStore)]
    measured = Measured(ends, grid, min(depth, stores[full].count), max_steps)
    measure(measured, search, [*indexes, *first_steps(sizes, codes)], timer)

    alone = Funnel((FunnelStep(full, measured.depth),))
    exact = measured.found[FunnelStep(full)][:, :CUTOFF]
    quality: Quality = judged or Agreement(exact[:, : measured.depth])
    best = quality.scores(exact[:, : measured.depth])
    if not best.any():
        raise UserError(f"at {full} no relevant passage is among the first {CUTOFF}", "check qrels and model")

    def share(scores: np.ndarray) -> float:
        return lower_share(scores, best, margin) + 1e-12

    estimates = {funnel: measured.seconds(funnel) for funnel in measured.funnels()}
    fastest_first = sorted(estimates, key=lambda one: (estimates[one], cost(one, stores[full].count), str(one)))
    faster = itertools.takewhile(lambda one: estimates[one] < estimates[alone], fastest_first)
    finalists = {alone: best} | _finalists(faster, search, measured, quality, lambda scores: share(scores) >= target)
    times = _median_times(search, finalists, timer)
    # Times this close are equal in the next search; other queries keep most by the funnel that keeps most here.
    fastest = min(times, key=lambda funnel: (times[funnel], cost(funnel, stores[full].count), str(funnel)))
    near = [funnel for funnel in times if times[funnel] <= (1 + tolerance) * times[fastest] and funnel != alone]
    chosen = fastest if fastest == alone else max(near, key=lambda funnel: (share(finalists[funnel]), -times[funnel]))
    first = chosen.steps[0]
    asked = first if isinstance(first, IndexStep) else None
    return FunnelChoice(
        funnel=Funnel((FunnelStep(first.size, first.keep, code=INDEX), *chosen.steps[1:])) if asked else chosen,
        full=full,
        target=target,
        measure=quality.name,
        score=float(finalists[chosen].mean()),
        full_score=float(best.mean()),
        lowest_share=lower_share(finalists[chosen], best, margin),
        cost_ratio=None if asked else cost(alone, stores[full].count) / cost(chosen, stores[full].count),
        milliseconds=times[chosen],
        full_milliseconds=times[alone],
        batch=search.batch,
        queries=len(used),
        tried=len(estimates),
        finalists=[
            {"funnel": with_index(funnel), "milliseconds": times[funnel], "share": float(scores.mean() / best.mean())}
            for funnel, scores in finalists.items()
        ],
        load_index=asked.folder if asked else None,
        index_search=(asked.parameters or None) if asked else None,
    )


def _checked_sizes(stores: Mapping[Size, EmbeddingStore], target: float, depth: int) -> list[Size]:
    """Return the sizes, ascending. Raises UserError unless a funnel can be chosen among them."""
    if not 0 < target <= 1:
        raise UserError(f"--target {target:g} is not a share of the full size's nDCG@10", "give a share such as 0.99")
    check_depth(depth)
    sizes = sorted(stores)
    if len(sizes) < 2:
        raise UserError(
            f"a funnel is chosen among several sizes, stored: {', '.join(map(str, sizes)) or 'none'}",
            "encode queries and passages at --sizes",
        )
    check_together(stores, sizes)
    return sizes


def _finalists(
    funnels: Iterable[Funnel],
    search: Trials,
    measured: Measured,
    quality: Quality,
    keeps_enough: Callable[[np.ndarray], bool],
) -> dict[Funnel, np.ndarray]:
    """Return the scores of the first funnels that keep enough, by what was measured and then by a search of their own."""
    found: dict[Funnel, np.ndarray] = {}
    for funnel in funnels:
        if keeps_enough(quality.scores(measured.results(funnel))):
            scores = quality.scores(search.rows(funnel)[:, :CUTOFF])
            if keeps_enough(scores):
                found[funnel] = scores
        if len(found) == _FINALISTS:
            break
    return found


def _median_times(search: Trials, funnels: Iterable[Funnel], timer: Timer) -> dict[Funnel, float]:
    """Return the milliseconds per query of funnels, which are timed in turns."""
    laps: dict[Funnel, list[float]] = {funnel: [] for funnel in funnels}
    for _ in range(_ROUNDS):
        for funnel, seconds in laps.items():
            seconds.append(search.seconds(funnel, timer))
    return {funnel: 1000 * float(np.median(seconds)) for funnel, seconds in laps.items()}


def _used(query_ids: Sequence[str], qrels: Qrels | None, seed: int) -> np.ndarray:
    """Return the rows of the queries to use: at most `_QUERIES` of those that are judged."""
    rows = [row for row, query_id in enumerate(query_ids) if qrels is None or query_id in qrels]
    if not rows:
        raise UserError(
            f"none of the {len(query_ids)} queries is judged: their ids are like {example(query_ids)}, those of the qrels "
            f"like {example(qrels or ())}",
            "give the qrels of these queries",
        )
    if qrels is not None and len(rows) < max(len(query_ids), len(qrels)):
        log.info("%d queries are judged, of %d queries and %d in the qrels", len(rows), len(query_ids), len(qrels))
    return np.array(rows)[sample_rows(len(rows), _QUERIES, seed)]
