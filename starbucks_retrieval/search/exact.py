"""Exact search by inner product: FAISS proposes, exact scores decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.plan import Plan, make_plan, parse_bytes
from starbucks_retrieval.search.scores import best, double_error, score_candidates, score_rows, single_error
from starbucks_retrieval.store import EmbeddingStore

Results = tuple[np.ndarray, np.ndarray]


def exact_search(
    queries: np.ndarray,
    store: EmbeddingStore,
    depth: int = 1000,
    *,
    batch_size: int = 1024,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    label: str = "",
) -> Iterator[Results]:
    """The `depth` passages of highest inner product for each query, in batches of queries, in order.

    `queries`: [queries, dim]. Yields (rows of the store [batch, depth], scores [batch, depth] float32), ordered by
    score, then docid, both descending; a corpus smaller than `depth` gives as many as it has. A score is the inner
    product in double precision, rounded: results are the same bits for every `batch_size` (-1: as many as fit),
    `max_memory`, `threads` and shard size. `label` shows progress. Raises UserError for a depth below 1, queries of
    another dim, NaN or infinity, and when FAISS is not installed.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    _check(queries, store, depth, batch_size)
    depth = min(depth, store.count)
    plan = make_plan(parse_bytes(max_memory), batch_size, depth, store.count, store.spec.size.dim)
    faiss = import_faiss()
    if threads is not None:
        faiss.omp_set_num_threads(threads)
    return _batches(queries, store, depth, plan, faiss, label)


def import_faiss() -> Any:
    """The module faiss, or a UserError that says how to get it."""
    try:
        import faiss
    except ImportError:
        raise UserError(
            "search needs FAISS, which is not installed",
            "pip install faiss-cpu (or faiss-gpu on a CUDA machine; never both)",
        ) from None
    return faiss


def _check(queries: np.ndarray, store: EmbeddingStore, depth: int, batch_size: int) -> None:
    if depth < 1:
        raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
    if batch_size < 1 and batch_size != -1:
        raise UserError(f"--batch_size {batch_size} is not a number of queries", "give 1 or more, or -1 for all")
    dim = store.spec.size.dim
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(f"queries of shape {queries.shape} do not fit passages of {dim} dimensions", "")
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(bad):
        raise UserError(
            f"the embedding of query {bad[0]} (from 0) has NaN or infinity", "check the model and its dtype"
        )
    longest = float(np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1).max(initial=0)))
    if longest * store.largest_norm > float(np.finfo(np.float32).max) / 2:
        raise UserError("these embeddings are so long that scores do not fit single precision", "encode normalised")


def _batches(
    queries: np.ndarray, store: EmbeddingStore, depth: int, plan: Plan, faiss: Any, label: str
) -> Iterator[Results]:
    for start in range(0, len(queries), plan.batch):
        batch = queries[start : start + plan.batch]
        rows, lowest = _candidates(batch, store, plan, faiss, label)
        scores = score_candidates(batch, rows, store, plan.gathered)
        rows, scores = best(rows, scores, depth, store)
        if plan.candidates < store.count:
            # A passage outside the list scores at most this; where it might reach the last place, look again.
            outside = lowest + single_error(batch, store.largest_norm) + double_error(batch, store.largest_norm)
            close = np.flatnonzero(outside.astype(np.float32) >= scores[:, -1])
            for first in range(0, len(close), plan.close):
                some = close[first : first + plan.close]
                rows[some], scores[some] = _search_closely(batch[some], scores[some, -1], store, depth, plan)
        yield rows, scores


def _candidates(queries: np.ndarray, store: EmbeddingStore, plan: Plan, faiss: Any, label: str) -> Results:
    """One pass over the store: FAISS's best rows for each query [queries, candidates], and the lowest score of each."""
    scores = np.empty((len(queries), 0), np.float32)
    rows = np.empty((len(queries), 0), np.int64)
    blocks: Any = store.blocks(plan.block, np.float32)
    if label:
        blocks = progress(blocks, -(-store.count // plan.block), "blocks", label)
    for start, block in blocks:
        count = min(plan.candidates, len(block))
        block_scores, block_rows = faiss.knn(queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
        scores = np.concatenate([scores, block_scores], axis=1)
        rows = np.concatenate([rows, block_rows + start], axis=1)
        if scores.shape[1] > plan.candidates:
            kept = np.argpartition(-scores, plan.candidates - 1, axis=1)[:, : plan.candidates]
            scores, rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)
    return rows, scores.min(axis=1)


def _search_closely(queries: np.ndarray, floor: np.ndarray, store: EmbeddingStore, depth: int, plan: Plan) -> Results:
    """One more pass for queries whose last place is contested: every passage that may reach `floor` is scored exactly.

    Many equal or nearly equal passages are the usual reason; memory stays that of a block however many there are.
    """
    doubles = double_error(queries, store.largest_norm)
    slack = single_error(queries, store.largest_norm) + doubles
    exact = queries.astype(np.float64)
    rows = [np.empty(0, np.int64) for _ in queries]
    scores = [np.empty(0, np.float32) for _ in queries]
    for start, block in store.blocks(plan.block, np.float32):
        approximate = queries @ block.T  # [queries, rows of the block]
        for i, line in enumerate(approximate):
            least = np.nextafter(floor[i], np.float32(-np.inf)) - slack[i]
            near = np.flatnonzero(line >= np.nextafter(np.float32(least), np.float32(-np.inf)))
            if not len(near):
                continue
            all_rows = np.concatenate([rows[i], near + start])
            all_scores = np.concatenate([scores[i], score_rows(block, near, exact[i], doubles[i])])
            top_rows, top_scores = best(all_rows[None], all_scores[None], depth, store)
            rows[i], scores[i] = top_rows[0], top_scores[0]
            if len(rows[i]) == depth:
                floor[i] = max(floor[i], scores[i][-1])
    return np.stack(rows), np.stack(scores)
