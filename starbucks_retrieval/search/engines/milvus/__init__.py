"""Search in Milvus: a file on a laptop (Milvus Lite), a server or a cluster, by the same calls.

Limits of each, as observed with pymilvus 3.0.2:

- Milvus Lite 3.2.2: any number of vector fields in a collection, partitions, FLAT, HNSW, HNSW_SQ, IVF_FLAT and IVF_SQ8,
  float32 vectors only. It builds indexes with fixed parameters, loses descriptions of collections (so the metadata is a
  property), and is open to one process at a time. It accepts any depth, but the limit of servers is kept so that a search
  that works here works there.
- Server 2.3.5: one vector field in a collection, so every size gets its own collection, with the size in its name. Later
  servers accept four by default (proxy.maxVectorFieldNum); more sizes are spread in the same way. Rows are counted after
  a flush, and a partition can be dropped only while the collection is released.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.base import RetrievedRows, Retriever, RetrieverEngine, SearchRequest
from starbucks_retrieval.search.engines.milvus.loading import LoadSummary, load_stores
from starbucks_retrieval.search.engines.milvus.search import MilvusCollection, MilvusField, milvus_funnel, milvus_search
from starbucks_retrieval.search.stores import open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size

__all__ = [
    "LoadSummary",
    "MilvusCollection",
    "MilvusEngine",
    "MilvusField",
    "load_stores",
    "milvus_funnel",
    "milvus_search",
]


class MilvusEngine(RetrieverEngine):
    """`--engine milvus`: loads what the collection lacks of the stores, then searches in Milvus."""

    def check(self, request: SearchRequest) -> None:
        """Raise UserError for an index of FAISS, a missing URI, and queries of another size than the passages."""
        if request.indexed:
            raise UserError("--engine milvus has its own indexes", "use --milvus_index")
        if request.options.uri is None:
            raise UserError("--uri is missing", "name a file such as milvus.db, or a server: http://host:19530")
        for size, store in request.passages.items():
            if store.spec.size != size:
                raise UserError(
                    f"--engine milvus searches queries and passages at one size, these are {size} and {store.spec.size}",
                    "use another engine",
                )

    def retriever(self, request: SearchRequest) -> Retriever:
        """Load all stored sizes into one collection, so that the next search finds its size there, and open it."""
        options, funnel = request.options, request.funnel
        assert options.uri is not None
        sizes = sorted({*stored_sizes(request.passage_reps), *request.passages})
        stores = open_sizes(request.passage_reps, sizes)
        loaded = load_stores(
            stores, options.uri, options.collection, index=options.milvus_index, token=options.milvus_token
        )
        log.info("%s", loaded)
        collection = MilvusCollection(options.uri, options.collection, token=options.milvus_token)
        needed = (request.last,) if funnel is None else tuple(funnel.sizes)
        for size in needed:
            collection.check(request.queries[size].spec)

        def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
            if funnel is None or len(funnel.steps) == 1:
                found = milvus_search(
                    queries[request.last], collection, request.last, request.depth, options.index_search
                )
            else:
                found = milvus_funnel(queries, collection, funnel, options.index_search)
            for rows, scores in found:
                held = rows >= 0  # an approximate index may find fewer
                yield [line[kept] for line, kept in zip(rows, held)], [line[kept] for line, kept in zip(scores, held)]

        return Retriever(needed, stores[request.last], retrieve, collection.close)
