"""Searching through a funnel: a shortlist by exact search or an index, then exact scores at larger sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import MAX_MEMORY, CandidateGenerator, SearchResults, plan_memory
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.funnel import Funnel, FunnelStep
from starbucks_retrieval.search.queries import check_queries
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.scores import score_in_threads
from starbucks_retrieval.search.stores import check_together
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

# Replaces exact search in the first step: takes queries [queries, dim] and a depth, and returns up to `depth` distinct
# rows and their scores for each query; a row of -1 stands for none.
Shortlister = Callable[[np.ndarray, int], tuple[Sequence[np.ndarray], Sequence[np.ndarray]]]


def funnel_search(
    queries: Mapping[Size, np.ndarray],
    stores: Mapping[Size, EmbeddingStore],
    funnel: Funnel,
    *,
    first: Shortlister | None = None,
    batch_size: int = 1024,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
    generator: CandidateGenerator | None = None,
    label: str = "",
) -> Iterator[SearchResults]:
    """Find the passages that a funnel keeps for each query, in batches of queries, in order.

    The first step searches its store exactly, or by `first`; each later step reads only the shortlisted rows of its
    store. If the first step keeps the whole corpus, results are those of exact search at the last size, bit for bit.
    An index that finds too few passages is completed with the first rows that it did not find.

    Args:
        queries: For each size of the funnel the same queries in the same order, [queries, dim].
        stores: The passages at each size of the funnel.
        funnel: The steps.
        first: Searches an index over the store of the first size, as `SavedIndex.search` does.
        batch_size: Queries per pass over the passages of the first step; -1: as many as fit in memory.
        max_memory: Bytes for vectors and result lists.
        threads: CPU threads; None: all.
        generator: Generates the candidates of exact search; FAISS on CPUs by default.
        label: Shown with the progress; empty for none.

    Returns:
        An iterator over batches: rows [batch, keep] and exact inner products of the last size [batch, keep] float32,
        ordered by score, then docid, both descending.

    Raises:
        UserError: The stores do not hold the same passages, a size is missing, or `exact_search` refuses the queries.

    Example:
        >>> import tempfile, numpy as np
        >>> from starbucks_retrieval.search.stores import write_vectors
        >>> wide = np.eye(4, dtype=np.float32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stores = {
        ...         Size(1, 2): write_vectors(f"{folder}/L1-D2", "abcd", wide[:, :2]),
        ...         Size(1, 4): write_vectors(f"{folder}/L1-D4", "abcd", wide),
        ...     }
        ...     query = np.array([[0.5, 0.25, 1.0, 0.0]])
        ...     queries = {Size(1, 2): query[:, :2], Size(1, 4): query}
        ...     [(rows, scores)] = funnel_search(queries, stores, Funnel.parse("1:2@2,1:4@1"))
        ...     stores[Size(1, 4)].ids(rows[0]), scores[0].tolist()
        (['a'], [0.5])
    """
    funnel = funnel.at_depth()
    check_together(stores, funnel.sizes)
    vectors = {size: _query_vectors(queries, size, stores[size], batch_size) for size in funnel.sizes}
    if len({len(of_size) for of_size in vectors.values()}) > 1:
        counts = ", ".join(f"{len(of_size)} at {size}" for size, of_size in vectors.items())
        raise UserError(f"the sizes have different numbers of queries: {counts}", "encode the queries at all sizes")
    size, keep = funnel.steps[0].size, funnel.steps[0].keep
    assert keep is not None
    if first is not None:
        shortlists = _shortlists(first, vectors[size], stores[size], keep, batch_size, max_memory)
        # An index that is the only step gives approximate scores: the passages are scored again, exactly.
        return _rescored(shortlists, vectors, stores, funnel.steps[1:] or funnel.steps, max_memory, threads)
    options: dict[str, Any] = {"batch_size": batch_size, "max_memory": max_memory, "threads": threads}
    shortlists = exact_search(vectors[size], stores[size], keep, generator=generator, label=label, **options)
    return _rescored(shortlists, vectors, stores, funnel.steps[1:], max_memory, threads)


def rescore(
    queries: np.ndarray, rows: np.ndarray, keep: int, store: EmbeddingStore, memory: int, threads: int | None = None
) -> SearchResults:
    """Return the `keep` best of each query's rows by exact score, as one later step of a funnel does.

    All rows are scored exactly, in parts that stay in the cache. Leaving out some by their scores in single precision
    first costs more: products of this form are divided by the linear algebra library among threads of its own, one caller
    at a time, and these keep processors waiting that could gather rows.

    Args:
        queries: [queries, dim].
        rows: Rows of the store [queries, candidates], distinct for each query.
        keep: Rows to return per query.
        store: Where the vectors are read.
        memory: Bytes for vectors and lists.
        threads: CPU threads; None: all.

    Returns:
        Rows and scores, both [queries, min(keep, candidates)].
    """
    plan = plan_memory(memory, len(rows), rows.shape[1], store.count, store.spec.size.dim)
    return best(rows, score_in_threads(queries, rows, store, plan.gathered, threads), keep, store)


def _query_vectors(
    queries: Mapping[Size, np.ndarray], size: Size, store: EmbeddingStore, batch_size: int
) -> np.ndarray:
    if size not in queries:
        raise UserError(f"there are no queries of size {size}", f"there is {', '.join(map(str, queries)) or 'none'}")
    return check_queries(queries[size], store, 1, batch_size)


def _rescored(
    shortlists: Iterable[SearchResults],
    queries: Mapping[Size, np.ndarray],
    stores: Mapping[Size, EmbeddingStore],
    steps: tuple[FunnelStep, ...],
    memory: int,
    threads: int | None,
) -> Iterator[SearchResults]:
    for step in steps:
        stores[step.size].keep_mapped()
    done = 0
    for rows, scores in shortlists:
        batch = slice(done, done + len(rows))
        for step in steps:
            keep = step.keep or rows.shape[1]
            rows, scores = rescore(queries[step.size][batch], rows, keep, stores[step.size], memory, threads)
        yield rows, scores
        done += len(rows)


def _shortlists(
    first: Shortlister, queries: np.ndarray, store: EmbeddingStore, keep: int, batch_size: int, memory: int
) -> Iterator[SearchResults]:
    keep = min(keep, store.count)
    batch = plan_memory(memory, batch_size, keep, store.count, store.spec.size.dim).batch
    for start in range(0, len(queries), batch):
        lines, _ = first(queries[start : start + batch], keep)
        rows = np.empty((len(lines), keep), np.int64)
        for i, line in enumerate(lines):
            found = np.asarray(line, np.int64)
            found = found[found >= 0][:keep]
            rows[i, : len(found)] = found
            if len(found) < keep:
                others = np.setdiff1d(np.arange(min(2 * keep, store.count)), found)
                rows[i, len(found) :] = others[: keep - len(found)]
        yield rows, np.zeros(rows.shape, np.float32)  # the next step scores them
