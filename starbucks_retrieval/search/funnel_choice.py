"""Choosing a funnel: the one with the fewest multiplications that keeps a share of the full size's nDCG@10.

Every funnel over the stored sizes and a grid of list lengths is compared, without searching through it. One exact search
for each size finds the longest shortlists, which begin with the shorter ones; every shortlisted passage is scored once
at each size; the results of a funnel then follow from ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data.collection import read_qrels
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, SearchArguments
from starbucks_retrieval.search.engines import MAX_MEMORY, CandidateGenerator, plan_memory
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.funnel import Funnel, FunnelChoice, FunnelStep, check_depth, grows
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.pairs import check_stores, cut_query_size, open_pairs
from starbucks_retrieval.search.plan import DEPTH, sizes_in_common
from starbucks_retrieval.search.scores import best, score_candidates
from starbucks_retrieval.search.stores import check_together
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

KEEPS = (50, 100, 200, 500, 1000, 2000, 5000)
CUTOFF = 10  # of nDCG
# Fetching a number by its row and scoring it exactly costs about as much as FAISS scanning this many in order:
# 13 at 768 dimensions, 16 at 128, measured on 150,000 passages.
FETCH_COST = 14

Qrels = Mapping[str, Mapping[str, int]]


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
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
    generator: CandidateGenerator | None = None,
) -> FunnelChoice:
    """Choose the funnel with the fewest multiplications that keeps a share of the full size's quality.

    Quality is nDCG@10 with linear gains, as in trec_eval; the full size is the largest one. Queries without judgements
    are left out. The choice is deterministic, only the milliseconds vary.

    Args:
        queries: Embeddings [queries, dim] for each size.
        query_ids: The ids of the queries.
        stores: The passages at each size.
        qrels: {query id: {docid: grade}}.
        target: Share of the full size's nDCG@10 to keep, in (0, 1].
        depth: Passages with which the funnel ends; every step keeps at least as many.
        keeps: List lengths to try.
        max_steps: Steps of a funnel at most.
        max_memory: Bytes for vectors and lists.
        threads: CPU threads; None: all.
        generator: Generates the candidates of exact search; FAISS on CPUs by default.

    Raises:
        UserError: Queries, judgements and passages have no ids in common, there is only one size, or the target is
            outside (0, 1].
    """
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
    full, count = sizes[-1], stores[sizes[-1]].count
    judged = [row for row, query_id in enumerate(query_ids) if query_id in qrels]
    if not judged:
        raise UserError(
            f"none of the {len(query_ids)} queries is judged: their ids are like {_example(query_ids)}, those of the qrels "
            f"like {_example(qrels)}",
            "give the qrels of these queries",
        )
    if len(judged) < max(len(query_ids), len(qrels)):
        log.info("%d queries are judged, of %d queries and %d in the qrels", len(judged), len(query_ids), len(qrels))
    judged_queries = {size: np.ascontiguousarray(queries[size][judged], np.float32) for size in sizes}
    grades = _Grades([qrels[query_ids[row]] for row in judged], stores[full])
    grid = sorted({keep for keep in (depth, *keeps) if depth <= keep < count})
    options: dict[str, Any] = {"max_memory": max_memory, "threads": threads, "generator": generator}

    totals: dict[Funnel, float] = {}
    with_successor = {size for size in sizes if any(grows(size, other) for other in sizes)}
    longest = {
        size: min(count, max(grid, default=depth) if size in with_successor else max(depth, CUTOFF)) for size in sizes
    }
    at_once = max(1, max_memory // 2 // (min(count, sum(longest.values())) * (48 + 16 * len(longest))))
    starts = range(0, len(judged), at_once)
    for start in progress(starts, len(starts), "batches", "choosing a funnel"):
        batch = slice(start, start + at_once)
        vectors = {size: of_size[batch] for size, of_size in judged_queries.items()}
        found = [exact_search(vectors[size], stores[size], longest[size], **options) for size in sizes]
        pool = _pool([np.concatenate([rows for rows, _ in of_size]) for of_size in found], count)
        order = {size: _order(vectors[size], pool, stores[size], max_memory) for size in sizes}
        for funnel, scores in _outcomes(order, grades.gains(pool, start), grid, depth, max_steps, count):
            totals[funnel] = totals.get(funnel, 0.0) + float((scores * grades.scale[batch]).sum())

    means = {funnel: total / len(judged) for funnel, total in totals.items()}
    alone = Funnel((FunnelStep(full, depth),))
    if means[alone] == 0:
        raise UserError(f"at {full} no relevant passage is among the first {CUTOFF}", "check qrels and model")
    good = [funnel for funnel, mean in means.items() if mean >= target * means[alone] * (1 - 1e-12)]
    chosen = min(good, key=lambda funnel: (cost(funnel, count), -means[funnel], str(funnel)))

    def milliseconds(funnel: Funnel) -> float:
        began = now()
        for _ in funnel_search(judged_queries, stores, funnel, **options):
            pass
        return seconds_since(began) * 1000 / len(judged)

    full_ms = milliseconds(alone)
    return FunnelChoice(
        funnel=chosen,
        full=full,
        target=target,
        score=means[chosen],
        full_score=means[alone],
        cost_ratio=cost(alone, count) / cost(chosen, count),
        milliseconds=full_ms if chosen == alone else milliseconds(chosen),
        full_milliseconds=full_ms,
        queries=len(judged),
        tried=len(means),
    )


def cost(funnel: Funnel, count: int) -> float:
    """Return the cost of a query: all passages at the first size, then the shortlists.

    The passages that the first step keeps are scored exactly at its size too.

    Args:
        funnel: The steps.
        count: Passages of the corpus.

    Returns:
        The time in units of scanning one number in order.
    """
    dims = [step.size.dim for step in funnel.steps]
    keeps = [funnel.steps[0].keep, *(step.keep for step in funnel.steps[:-1])]
    return count * dims[0] + FETCH_COST * sum(min(keep or 0, count) * dim for keep, dim in zip(keeps, dims))


class _Grades:
    """Judgements of the queries as gains of rows. `scale` [queries]: 1 / ideal DCG, or 0 without any gain."""

    def __init__(self, judgements: list[Mapping[str, int]], store: EmbeddingStore) -> None:
        wanted = {docid for grades in judgements for docid, grade in grades.items() if grade > 0}
        rows: dict[str, int] = {}
        for start in range(0, store.count, 65536):
            block = np.arange(start, min(start + 65536, store.count))
            rows.update((docid, row) for docid, row in zip(store.ids(block), block.tolist()) if docid in wanted)
        if not rows:
            raise UserError(
                f"none of the {len(wanted)} relevant documents of the qrels is among the passages: their ids are like "
                f"{_example(wanted)}, those of the passages like {store.ids(np.array([0]))[0]!r}",
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
        """Return the gain of every row of `pool` [queries, rows], ascending in each line, from query `first` on."""
        gains = np.zeros(pool.shape)
        for line, of_query in enumerate(self._gains[first : first + len(pool)]):
            rows = np.fromiter(of_query, np.int64, len(of_query))
            columns = np.searchsorted(pool[line], rows).clip(max=pool.shape[1] - 1)
            pooled = pool[line, columns] == rows
            gains[line, columns[pooled]] = np.fromiter(of_query.values(), float, len(of_query))[pooled]
        return gains


_DISCOUNTS = 1 / np.log2(np.arange(2, CUTOFF + 2))


def _outcomes(
    order: Mapping[Size, np.ndarray], gains: np.ndarray, keeps: Sequence[int], depth: int, max_steps: int, count: int
) -> Iterator[tuple[Funnel, np.ndarray]]:
    """Yield the full size and every funnel that costs less, with the DCG@10 of each query.

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
                left_ranks = np.take_along_axis(ranks[size], left, 1)
                ranked = np.take_along_axis(left, np.argsort(left_ranks, axis=1), 1)
            top = ranked[:, : min(CUTOFF, depth)]
            yield funnel, np.take_along_axis(gains, top, 1) @ _DISCOUNTS[: top.shape[1]]
            if len(path) + 1 < max_steps:
                for keep in keeps:
                    if not path or keep < (path[-1].keep or 0):
                        yield from after((*path, FunnelStep(size, keep)), ranked[:, :keep])

    yield from after((), None)


def _pool(found: list[np.ndarray], count: int) -> np.ndarray:
    """Return for each query the distinct rows that any size found, ascending: [queries, pool].

    Shorter lines are padded with other rows: no size ranks them high enough to be shortlisted.
    """
    lines = [np.unique(np.concatenate(of_query)) for of_query in zip(*found)]
    width = max(map(len, lines))
    for i, line in enumerate(lines):
        others = np.setdiff1d(np.arange(min(2 * width, count)), line, assume_unique=True)
        lines[i] = np.sort(np.concatenate([line, others[: width - len(line)]]))
    return np.stack(lines)


def _order(queries: np.ndarray, pool: np.ndarray, store: EmbeddingStore, memory: int) -> np.ndarray:
    """Return the columns of `pool` in the order in which the size of `store` ranks them: [queries, pool]."""
    gathered = plan_memory(memory, len(pool), pool.shape[1], store.count, store.spec.size.dim).gathered
    rows, _ = best(pool, score_candidates(queries, pool, store, gathered), pool.shape[1], store)
    return np.stack([np.searchsorted(line, ranked) for line, ranked in zip(pool, rows)])


def _example(names: Iterable[str]) -> str:
    return repr(next(iter(names), ""))


def choose_stored_funnel(arguments: SearchArguments, funnel: FunnelArguments) -> FunnelChoice:
    """Choose a funnel over the sizes that are stored for both queries and passages.

    Args:
        arguments: Stores, depth, memory and threads.
        funnel: `qrels` of the queries, and the `target` share of the full size's nDCG@10 to keep.

    Raises:
        UserError: There is no such size, or `choose_funnel` refuses queries or judgements.
    """
    sizes = sizes_in_common(arguments)
    if not sizes:
        raise UserError("queries and passages have no size in common", "encode both at the same --sizes")
    at = arguments.named_query_size
    of_queries = {size: cut_query_size(at, size) for size in sizes} if at is not None else None
    queries, passages = open_pairs(arguments.query_reps or "", arguments.passage_reps or "", sizes, of_queries)
    check_stores(queries, passages, arguments.override)
    rows = np.arange(queries[sizes[-1]].count)
    choice = choose_funnel(
        {size: store.vectors(rows).astype(np.float32) for size, store in queries.items()},
        queries[sizes[-1]].ids(rows),
        passages,
        read_qrels(funnel.qrels or ""),
        target=funnel.target,
        depth=DEPTH if arguments.depth is None else arguments.depth,
        max_memory=arguments.memory_bytes,
        threads=arguments.threads,
    )
    log.info("%s", choice)
    return choice
