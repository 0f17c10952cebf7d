"""Retrievers: exact search, an approximate index or a funnel over the candidates of an engine, or an engine itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import ENGINES
from starbucks_retrieval.search.engines.base import (
    RetrievedRows,
    Retriever,
    RetrieverEngine,
    SearchRequest,
    make_candidate_generator,
)
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.indexes import RESCORE, SavedIndex
from starbucks_retrieval.sizes import Size


def make_retriever(
    engine: str, request: SearchRequest, index: SavedIndex | None = None, rescore: int = RESCORE
) -> Retriever:
    """Return the retriever of a search; its owner closes it.

    Args:
        engine: A name of `ENGINES`.
        request: Stores, depth, funnel and options.
        index: An approximate index over the passages of `request.first`.
        rescore: Rows of the index to score again, as a multiple of the depth.

    Raises:
        UserError: The engine cannot meet the options, or the index is of another size than the funnel's first step.
    """
    made = ENGINES[engine]()
    if isinstance(made, RetrieverEngine):
        return made.retriever(request)
    if index is not None and request.funnel is None:
        return _index_retriever(request, index, rescore)
    if request.funnel is not None:
        return _funnel_retriever(engine, request, request.funnel, index)
    return _exact_retriever(engine, request)


def _exact_retriever(engine: str, request: SearchRequest) -> Retriever:
    options, size, store = request.options, request.last, request.passages[request.last]
    generator = make_candidate_generator(engine, options, store.spec.size.dim)

    def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        return exact_search(
            queries[size],
            store,
            request.depth,
            batch_size=options.batch_size,
            max_memory=options.max_memory,
            threads=options.threads,
            label=label,
            generator=generator,
        )

    return Retriever((size,), store, retrieve)


def _index_retriever(request: SearchRequest, index: SavedIndex, rescore: int) -> Retriever:
    options, size = request.options, request.last

    def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        yield index.search(
            queries[size],
            request.depth,
            parameters=options.index_search,
            rescore=rescore,
            max_memory=options.max_memory,
            threads=options.threads,
        )

    return Retriever((size,), index.store, retrieve)


def _funnel_retriever(engine: str, request: SearchRequest, funnel: Funnel, index: SavedIndex | None) -> Retriever:
    options, stores = request.options, request.passages
    generator = make_candidate_generator(engine, options, stores[request.first].spec.size.dim)
    first = None
    if index is not None:
        first_size = stores[request.first].spec.size
        if index.store.spec.size != first_size:
            raise UserError(
                f"the index is of size {index.store.spec.size}, the funnel begins at {first_size}",
                "build one of the funnel's first size",
            )
        # The next steps score again.
        first = SimpleNamespace(search=partial(index.search, rescore=0, parameters=options.index_search))

    def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        return funnel_search(
            queries,
            stores,
            funnel,
            first=first,
            batch_size=options.batch_size,
            max_memory=options.max_memory,
            threads=options.threads,
            generator=generator,
            label=label,
        )

    return Retriever(tuple(funnel.sizes), stores[funnel.last], retrieve)
