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

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.search.engines import RetrievedRows, Retriever, RetrieverEngine, SearchRequest
from starbucks_retrieval.search.engines.milvus.collections import (
    DOCID,
    INDEX,
    ROW,
    Collection,
    CollectionMetadata,
    check_name,
    field_name,
    make_collections,
)
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.engines.milvus.search import MilvusCollection, MilvusField, milvus_funnel, milvus_search
from starbucks_retrieval.search.stores import check_together, open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

__all__ = [
    "LoadSummary",
    "MilvusCollection",
    "MilvusEngine",
    "MilvusField",
    "load_stores",
    "milvus_funnel",
    "milvus_search",
]
__dir__ = public_names(__name__)


class MilvusEngine(RetrieverEngine):
    """`--engine milvus`: loads what the collection lacks of the stores, then searches in Milvus."""

    def check(self, request: SearchRequest) -> None:
        """Raise UserError for an index or codes of FAISS, and for a missing URI."""
        if request.indexed:
            raise UserError("--engine milvus has its own indexes", "use --milvus_index")
        if request.funnel is not None and request.funnel.steps[0].code:
            raise UserError(f"--engine milvus does not scan {request.funnel.steps[0]}", "use --milvus_index")
        if request.options.uri is None:
            raise UserError("--uri is missing", "name a file such as milvus.db, or a server: http://host:19530")

    def retriever(self, request: SearchRequest) -> Retriever:
        """Load all stored sizes into one collection, so that the next search finds its size there, and open it."""
        options, funnel = request.options, request.funnel
        assert options.uri is not None
        fields = {size: store.spec.size for size, store in request.passages.items()}
        sizes = sorted({*stored_sizes(request.passage_reps), *fields.values()})
        stores = open_sizes(request.passage_reps, sizes)
        loaded = load_stores(
            stores, options.uri, options.collection, index=options.milvus_index, token=options.milvus_token
        )
        log.info("%s", loaded)
        collection = MilvusCollection(options.uri, options.collection, token=options.milvus_token)
        needed = (request.last,) if funnel is None else tuple(funnel.sizes)
        for size in needed:
            queries = request.queries[size].spec
            if queries.size == fields[size]:  # other pairs were compared with the stores that the collection holds
                collection.check(queries)

        def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
            if funnel is None or len(funnel.steps) == 1:
                found = milvus_search(
                    queries[request.last], collection, fields[request.last], request.depth, options.index_search
                )
            else:
                found = milvus_funnel(queries, collection, funnel, options.index_search, fields=fields)
            for rows, scores in found:
                held = rows >= 0  # an approximate index may find fewer
                yield [line[kept] for line, kept in zip(rows, held)], [line[kept] for line, kept in zip(scores, held)]

        return Retriever(needed, stores[fields[request.last]], retrieve, collection.close)


_CALL_BYTES = 2**23  # bytes of vectors per call; servers accept 64 MB
_ROUNDS = 3  # a call whose answer was lost may have been repeated; such partitions are loaded again


@dataclass(frozen=True)
class LoadSummary:
    """What one load did.

    Attributes:
        collection: Name of the collection.
        sizes: The sizes that it has, such as `2:32, 12:768`.
        rows: Passages in it.
        loaded: Rows that were sent now; the others were loaded before.
        seconds: Time of this load.
    """

    collection: str
    sizes: str
    rows: int
    loaded: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.rows} passages at {self.sizes} are in the collection {self.collection}; "
            f"{self.loaded} rows were loaded in {self.seconds:.1f} s"
        )


def load_stores(
    stores: Mapping[Size, EmbeddingStore],
    uri: str,
    collection: str,
    *,
    token: str | None = None,
    index: str = "FLAT",
    index_params: Mapping[str, Any] | None = None,
    batch_rows: int | None = None,
    timeout: float = 60.0,
) -> LoadSummary:
    """Load passages into Milvus, ready to be searched.

    Every size becomes a vector field with an index by inner product. The primary key is the row of the store. Every shard
    is a partition (several shards, where there are more than 512); complete partitions of an earlier run are kept,
    others are loaded again.

    Args:
        stores: The same passages at one or more sizes.
        uri: http://host:19530, or x.db for Milvus Lite.
        collection: Name of the collection.
        token: user:password.
        index: Type of the index, as Milvus names it.
        index_params: Parameters of building it.
        batch_rows: Rows per call; None: as many as 8 MB hold.
        timeout: Seconds to wait for a Milvus that does not answer.

    Raises:
        UserError: The stores do not belong together, the collection holds something else, or Milvus refuses a call.
    """
    began = time.monotonic()
    check_name(collection)
    if not stores:
        raise UserError("there are no stores to load", "name the passages with --passage_reps")
    check_together(stores, stores)
    for store in stores.values():
        if store.spec.kind != "passages":
            raise UserError("this store holds queries, not passages", "name the passages with --passage_reps")
    if batch_rows is not None and batch_rows < 1:
        raise UserError(f"{batch_rows} rows per call are below 1", "omit batch_rows")
    metadata = CollectionMetadata.of(stores)
    connection = Connection(uri, token, timeout)
    try:
        collections = make_collections(connection, collection, metadata)
        loaded = 0
        for target in collections:
            held = {size: stores[size] for size in target.metadata.fields}
            loaded += _fill(connection, target, held, batch_rows)
            _index(connection, target, index.upper(), index_params or {})
    finally:
        connection.close()
    return LoadSummary(
        collection=collection,
        sizes=", ".join(map(str, metadata.fields)),
        rows=metadata.count,
        loaded=loaded,
        seconds=time.monotonic() - began,
    )


def _fill(
    connection: Connection, collection: Collection, stores: Mapping[Size, EmbeddingStore], batch_rows: int | None
) -> int:
    """Load every incomplete partition. Returns how many rows were sent."""
    sent = 0
    for _ in range(_ROUNDS):
        broken = _broken(connection, collection)
        if not broken:
            return sent
        # A partition can be dropped only while the collection is released.
        connection.call("release_collection", collection.name)
        existing = set(connection.call("list_partitions", collection.name))
        for name, start, stop in progress(broken, len(broken), "partitions", f"load {collection.name}"):
            if name in existing:
                connection.call("drop_partition", collection.name, name)
            connection.call("create_partition", collection.name, name)
            for rows in _rows(stores, start, stop, batch_rows):
                connection.call("insert", collection.name, rows, partition_name=name)
            sent += stop - start
    if broken := _broken(connection, collection):
        raise UserError(
            f"{len(broken)} partitions of {collection.name} do not have the rows that were loaded: {broken[0][0]}, …",
            "check the Milvus server, then run the same command again",
        )
    return sent


def _broken(connection: Connection, collection: Collection) -> list[tuple[str, int, int]]:
    """Return the partitions that are missing or have another number of rows than they should."""
    connection.call("flush", collection.name)  # rows are counted after a flush
    existing = set(connection.call("list_partitions", collection.name))
    return [
        (name, start, stop)
        for name, start, stop in collection.metadata.partitions()
        if name not in existing
        or int(connection.call("get_partition_stats", collection.name, name)["row_count"]) != stop - start
    ]


def _rows(
    stores: Mapping[Size, EmbeddingStore], start: int, stop: int, batch_rows: int | None
) -> Iterator[list[dict[str, Any]]]:
    at_once = batch_rows or max(1, _CALL_BYTES // (4 * sum(size.dim for size in stores)))
    for low in range(start, stop, at_once):
        high = min(low + at_once, stop)
        read = {size: store.consecutive(low, high) for size, store in stores.items()}
        ids = next(iter(read.values()))[0]
        for size, (others, _) in read.items():
            if others != ids:
                raise UserError(f"rows {low} to {high} have other ids at {size}", "encode all sizes in one run")
        columns = {field_name(size): vectors.astype(np.float32) for size, (_, vectors) in read.items()}
        yield [
            {ROW: low + i, DOCID: docid} | {name: vectors[i] for name, vectors in columns.items()}
            for i, docid in enumerate(ids)
        ]


def _index(connection: Connection, collection: Collection, kind: str, parameters: Mapping[str, Any]) -> None:
    """Build the indexes unless they exist, load the collection for search and mark it complete."""
    # The description of the server is of no use: that of Milvus Lite has no parameters.
    wanted = " ".join([kind, *(f"{name}={value}" for name, value in sorted(parameters.items()))])
    if collection.index != wanted:
        existing = set(connection.call("list_indexes", collection.name))
        if existing:
            connection.call("release_collection", collection.name)
        for name in map(field_name, collection.metadata.fields):
            if name in existing:
                connection.call("drop_index", collection.name, name)
            log.info("index %s of %s: %s", name, collection.name, wanted)
            connection.call("create_index", collection.name, connection.index(name, kind, dict(parameters)))
    connection.call("load_collection", collection.name)
    if collection.index != wanted:  # the property also says that the collection is complete
        connection.call("alter_collection_properties", collection.name, properties={INDEX: wanted})
