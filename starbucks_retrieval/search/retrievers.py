"""The ways to find passages for a block of queries: exact, through an index, through a funnel, in Milvus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import CandidateGenerator, exact_search
from starbucks_retrieval.search.funnel.funnel import Funnel, funnel_search
from starbucks_retrieval.search.indexes import SavedIndex
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

RetrievedRows = Iterable[tuple[Iterable[np.ndarray], Iterable[np.ndarray]]]


class DocidLookup(Protocol):
    """What turns rows into ids; every store does."""

    def ids(self, rows: np.ndarray) -> list[str]: ...


@dataclass(frozen=True)
class Retriever:
    """`find` takes {size: queries [block, dim]} for `sizes` and a label; it yields rows and scores, batch by batch.

    `close` ends what it started for that.
    """

    sizes: tuple[Size, ...]
    names: DocidLookup
    find: Callable[[Mapping[Size, np.ndarray], str], RetrievedRows]
    close: Callable[[], None] = lambda: None


def exact_retriever(
    size: Size, store: EmbeddingStore, depth: int, generator: CandidateGenerator | None, **options: Any
) -> Retriever:
    """By exact search of one store; `size` is that of the queries, here and below."""

    def find(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        return exact_search(queries[size], store, depth, generator=generator, label=label, **options)

    return Retriever((size,), store, find)


def ray_retriever(size: Size, store: EmbeddingStore, depth: int, batch_size: int, **options: Any) -> Retriever:
    """By exact search in Ray workers, each over its own rows; they stay for all blocks of queries."""
    from starbucks_retrieval.search.engines.ray import RaySearch

    workers = RaySearch(store.folders, depth, **options)

    def find(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        return workers.search(queries[size], batch_size)

    return Retriever((size,), store, find, workers.close)


def index_retriever(
    size: Size, index: SavedIndex, depth: int, rescore: int, parameters: Mapping[str, Any], **options: Any
) -> Retriever:
    """Through an approximate index, the best scored again."""

    def find(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        yield index.search(queries[size], depth, rescore=rescore, parameters=parameters, **options)

    return Retriever((size,), index.store, find)


def funnel_retriever(
    stores: Mapping[Size, EmbeddingStore],
    funnel: Funnel,
    index: SavedIndex | None,
    parameters: Mapping[str, Any],
    **options: Any,
) -> Retriever:
    """Through a funnel; `index`, of the first step's size, may make its shortlist."""
    first = None
    if index is not None:
        begins = stores[funnel.sizes[0]].spec.size
        if index.store.spec.size != begins:
            raise UserError(
                f"the index is of size {index.store.spec.size}, the funnel begins at {begins}",
                "build one of the funnel's first size",
            )
        # The steps that follow score again.
        first = SimpleNamespace(search=partial(index.search, rescore=0, parameters=parameters))

    def find(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        return funnel_search(queries, stores, funnel, first=first, label=label, **options)

    return Retriever(tuple(funnel.sizes), stores[funnel.last], find)


def milvus_retriever(
    queries: Mapping[Size, EmbeddingStore],
    stores: Mapping[Size, EmbeddingStore],
    funnel: Funnel,
    uri: str,
    collection: str,
    parameters: Mapping[str, Any],
    **loading: Any,
) -> Retriever:
    """In Milvus, which is first given what it lacks of the stores; those may have more sizes than are searched."""
    from starbucks_retrieval.search.engines.milvus import MilvusCollection, load, milvus_funnel, milvus_search

    log.info("%s", load(stores, uri, collection, **loading))
    opened = MilvusCollection(uri, collection, token=loading.get("token"))
    for size in funnel.sizes:
        opened.check(queries[size].spec)

    def find(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        if len(funnel.steps) == 1:
            assert funnel.depth is not None
            found = milvus_search(queries[funnel.last], opened, funnel.last, funnel.depth, parameters)
        else:
            found = milvus_funnel(queries, opened, funnel, parameters)
        for rows, scores in found:
            there = rows >= 0  # an approximate index may find fewer
            yield [own[held] for own, held in zip(rows, there)], [own[held] for own, held in zip(scores, there)]

    return Retriever(tuple(funnel.sizes), stores[funnel.last], find, opened.close)
