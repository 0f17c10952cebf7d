"""Choosing a funnel: the cheapest one that keeps a share of the full size's nDCG@10 on judged queries.

Every funnel over the stored sizes and a grid of list lengths is tried, but no search is run for it. One exact search a
size finds the longest shortlists, whose beginnings are the shorter ones; every shortlisted passage is scored once a
size; what a funnel then does to a query is a matter of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import CandidateGenerator, Results, exact_search
from starbucks_retrieval.search.funnel.funnel import Funnel, FunnelStep, check_together, funnel_search, grows
from starbucks_retrieval.search.plan import make_plan, parse_bytes
from starbucks_retrieval.search.scores import best, score_candidates
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

KEEPS = (50, 100, 200, 500, 1000, 2000, 5000)
CUTOFF = 10  # of nDCG
# A number that is fetched by its row and scored exactly costs about as much as this many scanned in order by FAISS:
# 13 at 768 dimensions, 16 at 128, measured on 150,000 passages.
FETCHED = 14

Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class FunnelChoice:
    """The funnel chosen and what it was chosen by.

    `score`, `full_score`: nDCG@10 over `queries` judged queries. `cost_ratio`: how many times cheaper than the full
    size the funnel is by the numbers it multiplies; the milliseconds per query are measured. `tried`: funnels compared.
    """

    funnel: Funnel
    full: Size
    target: float
    score: float
    full_score: float
    cost_ratio: float
    milliseconds: float
    full_milliseconds: float
    queries: int
    tried: int

    def __str__(self) -> str:
        if self.funnel.sizes[0] == self.full:
            return (
                f"of {self.tried} funnels none is cheaper than {self.full} alone and keeps {self.target:.1%} of its "
                f"nDCG@10 {self.full_score:.4f}; searching at {self.full}"
            )
        # Many queries at once look at few passages faster than rows are fetched one by one.
        slower = self.milliseconds >= self.full_milliseconds
        return (
            f"{self.funnel}: nDCG@10 {self.score:.4f} of {self.full_score:.4f} at {self.full} "
            f"({self.score / self.full_score:.1%}), {self.cost_ratio:.1f} times fewer numbers to multiply, "
            f"{self.milliseconds:.2f} ms a query instead of {self.full_milliseconds:.2f}"
            + (f"; with so few passages {self.full} alone is faster" if slower else "")
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return vars(self) | {"funnel": str(self.funnel), "full": str(self.full)}


def choose_funnel(
    queries: Mapping[Size, np.ndarray],
    query_ids: Sequence[str],
    stores: Mapping[Size, EmbeddingStore],
    qrels: Qrels,
    *,
    target: float = 0.99,
    depth: int = CUTOFF,
    keeps: Iterable[int] = KEEPS,
    max_steps: int = 3,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    generator: CandidateGenerator | None = None,
) -> FunnelChoice:
    """The cheapest funnel of up to `max_steps` steps over the sizes of `stores` that keeps `target` of the quality.

    `queries`: {size: [queries, dim]} for the queries `query_ids`; those without judgements are left out. Quality is
    nDCG@10 (linear gains, as in trec_eval), the full size the largest one. Every step keeps `depth` passages at least,
    which is how many the funnel ends with. Deterministic but for the milliseconds. Raises UserError when queries,
    judgements and passages do not meet, for a single size, and for a target outside (0, 1].
    """
    if not 0 < target <= 1:
        raise UserError(f"--target {target:g} is not a share of the full size's nDCG@10", "give 0.99, say")
    if depth < 1:
        raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
    sizes = sorted(stores)
    if len(sizes) < 2:
        raise UserError(
            f"{', '.join(map(str, sizes)) or 'no size'} is all there is: a funnel is chosen among several sizes",
            "encode queries and passages at --sizes",
        )
    check_together(stores, sizes)
    full, count = sizes[-1], stores[sizes[-1]].count
    judged = [row for row, query_id in enumerate(query_ids) if query_id in qrels]
    if not judged:
        raise UserError(
            f"none of the {len(query_ids)} queries is judged: they are named as {_first(query_ids)}, in the qrels as "
            f"{_first(qrels)}",
            "give the qrels of these queries",
        )
    if len(judged) < max(len(query_ids), len(qrels)):
        log.info("%d queries are judged, of %d queries and %d in the qrels", len(judged), len(query_ids), len(qrels))
    own = {size: np.ascontiguousarray(queries[size][judged], np.float32) for size in sizes}
    grades = _Grades([qrels[query_ids[row]] for row in judged], stores[full])
    grid = sorted({keep for keep in (depth, *keeps) if depth <= keep < count})
    options: dict[str, Any] = {"max_memory": max_memory, "threads": threads, "generator": generator}

    totals: dict[Funnel, float] = {}
    with_successor = {size for size in sizes if any(grows(size, other) for other in sizes)}
    longest = {
        size: min(count, max(grid, default=depth) if size in with_successor else max(depth, CUTOFF)) for size in sizes
    }
    at_once = _queries_at_once(parse_bytes(max_memory), longest, count)
    starts = range(0, len(judged), at_once)
    for start in progress(starts, len(starts), "batches", "choosing a funnel"):
        batch = slice(start, start + at_once)
        some = {size: vectors[batch] for size, vectors in own.items()}
        found = [_all_rows(exact_search(some[size], stores[size], longest[size], **options)) for size in sizes]
        pool = _pool(found, count)
        order = {size: _order(some[size], pool, stores[size], parse_bytes(max_memory)) for size in sizes}
        for funnel, scores in _outcomes(order, grades.gains(pool, start), grid, depth, max_steps, count):
            totals[funnel] = totals.get(funnel, 0.0) + float((scores * grades.scale[batch]).sum())

    means = {funnel: total / len(judged) for funnel, total in totals.items()}
    alone = Funnel((FunnelStep(full, depth),))
    if means[alone] == 0:
        raise UserError(f"at {full} no judged passage comes among the first {CUTOFF}", "check qrels and model")
    good = [funnel for funnel, mean in means.items() if mean >= target * means[alone] * (1 - 1e-12)]
    chosen = min(good, key=lambda funnel: (cost(funnel, count), -means[funnel], str(funnel)))
    full_ms = _milliseconds(lambda: funnel_search(own, stores, alone, **options), len(judged))
    return FunnelChoice(
        funnel=chosen,
        full=full,
        target=target,
        score=means[chosen],
        full_score=means[alone],
        cost_ratio=cost(alone, count) / cost(chosen, count),
        milliseconds=full_ms
        if chosen == alone
        else _milliseconds(lambda: funnel_search(own, stores, chosen, **options), len(judged)),
        full_milliseconds=full_ms,
        queries=len(judged),
        tried=len(means),
    )


def cost(funnel: Funnel, count: int) -> float:
    """What a query costs, in numbers scanned: the first size of all `count` passages, then the shortlists.

    The passages that the first step lets through are scored exactly at its own size too.
    """
    dims = [step.size.dim for step in funnel.steps]
    keeps = [funnel.steps[0].keep, *(step.keep for step in funnel.steps[:-1])]
    return count * dims[0] + FETCHED * sum(min(keep or 0, count) * dim for keep, dim in zip(keeps, dims))


class _Grades:
    """Judgements of the queries as gains of rows. `scale`: [queries], one over the ideal DCG, or 0 without any gain."""

    def __init__(self, judgements: list[Mapping[str, int]], store: EmbeddingStore) -> None:
        wanted = {docid for grades in judgements for docid, grade in grades.items() if grade > 0}
        rows: dict[str, int] = {}
        for start in range(0, store.count, 65536):
            own = np.arange(start, min(start + 65536, store.count))
            rows.update((docid, row) for docid, row in zip(store.ids(own), own.tolist()) if docid in wanted)
        if not rows:
            raise UserError(
                f"none of the {len(wanted)} relevant documents of the qrels is among the passages: they are named as "
                f"{_first(wanted)}, the passages as {store.ids(np.array([0]))[0]!r}",
                "give the qrels of this corpus",
            )
        self._gains = [
            {rows[docid]: grade for docid, grade in grades.items() if grade > 0 and docid in rows}
            for grades in judgements
        ]
        ideal = [sorted((grade for grade in grades.values() if grade > 0), reverse=True) for grades in judgements]
        best = np.array([np.dot(line[:CUTOFF], _DISCOUNTS[: len(line)]) for line in ideal])
        self.scale = np.divide(1, best, out=np.zeros(len(best)), where=best > 0)

    def gains(self, pool: np.ndarray, first: int) -> np.ndarray:
        """The gain of every row of `pool` [queries, rows], ascending in each line; its first line is query `first`."""
        gains = np.zeros(pool.shape)
        for line, own in enumerate(self._gains[first : first + len(pool)]):
            rows = np.fromiter(own, np.int64, len(own))
            places = np.searchsorted(pool[line], rows).clip(max=pool.shape[1] - 1)
            there = pool[line, places] == rows
            gains[line, places[there]] = np.fromiter(own.values(), float, len(own))[there]
        return gains


_DISCOUNTS = 1 / np.log2(np.arange(2, CUTOFF + 2))


def _outcomes(
    order: Mapping[Size, np.ndarray], gains: np.ndarray, keeps: Sequence[int], depth: int, max_steps: int, count: int
) -> Iterator[tuple[Funnel, np.ndarray]]:
    """Every funnel that costs less than the full size, and that one, with its DCG@10 for each query.

    `order`: for each size the columns of the pool [queries, pool] in the order in which that size ranks them.
    """
    ranks = {size: np.argsort(columns, axis=1) for size, columns in order.items()}
    full = Funnel((FunnelStep(max(order), depth),))

    def after(path: tuple[FunnelStep, ...], left: np.ndarray | None) -> Iterator[tuple[Funnel, np.ndarray]]:
        for size in order:
            if path and not grows(path[-1].size, size):
                continue
            funnel = Funnel((*path, FunnelStep(size, depth)))
            if funnel != full and cost(funnel, count) >= cost(full, count):
                continue
            if left is None:
                ranked = order[size]
            else:
                own = np.take_along_axis(ranks[size], left, 1)
                ranked = np.take_along_axis(left, np.argsort(own, axis=1), 1)
            top = ranked[:, : min(CUTOFF, depth)]
            yield funnel, np.take_along_axis(gains, top, 1) @ _DISCOUNTS[: top.shape[1]]
            if len(path) + 1 < max_steps:
                for keep in keeps:
                    if not path or keep < (path[-1].keep or 0):
                        yield from after((*path, FunnelStep(size, keep)), ranked[:, :keep])

    yield from after((), None)


def _queries_at_once(memory: int, longest: Mapping[Size, int], count: int) -> int:
    pool = min(count, sum(longest.values()))
    return max(1, memory // 2 // (pool * (48 + 16 * len(longest))))


def _pool(found: list[np.ndarray], count: int) -> np.ndarray:
    """For each query the distinct rows that any size found, ascending: [queries, pool].

    Shorter lines are filled up with other rows: no size ranks them high enough to be shortlisted.
    """
    lines = [np.unique(np.concatenate(own)) for own in zip(*found)]
    width = max(map(len, lines))
    for i, line in enumerate(lines):
        others = np.setdiff1d(np.arange(min(2 * width, count)), line, assume_unique=True)
        lines[i] = np.sort(np.concatenate([line, others[: width - len(line)]]))
    return np.stack(lines)


def _order(queries: np.ndarray, pool: np.ndarray, store: EmbeddingStore, memory: int) -> np.ndarray:
    """Columns of `pool` in the order in which the size of `store` ranks them: [queries, pool]."""
    gathered = make_plan(memory, len(pool), pool.shape[1], store.count, store.spec.size.dim).gathered
    rows, _ = best(pool, score_candidates(queries, pool, store, gathered), pool.shape[1], store)
    return np.stack([np.searchsorted(line, own) for line, own in zip(pool, rows)])


def _all_rows(found: Iterable[Results]) -> np.ndarray:
    return np.concatenate([rows for rows, _ in found])


def _milliseconds(search: Callable[[], Iterable[Results]], queries: int) -> float:
    began = now()
    for _ in search():
        pass
    return seconds_since(began) * 1000 / queries


def _first(names: Iterable[str]) -> str:
    return repr(next(iter(names), ""))
