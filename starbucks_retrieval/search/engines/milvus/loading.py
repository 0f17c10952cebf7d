"""Loading stores into Milvus: in bulk, a partition at a time, going on where an earlier run stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log, progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.milvus.collections import (
    DOCID,
    ROW,
    Collection,
    check_name,
    field_name,
    make_collections,
    mark_complete,
)
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.engines.milvus.metadata import CollectionMetadata
from starbucks_retrieval.search.funnel.funnel import check_together
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

_MESSAGE = 2**23  # bytes of vectors a call; servers take 64 MB
_ROUNDS = 3  # a call whose answer was lost may have been carried out twice; such partitions are loaded anew


@dataclass(frozen=True)
class LoadSummary:
    """What one load did: rows `loaded` now and `there` already, in how many Milvus `collections`."""

    collection: str
    sizes: str
    rows: int
    loaded: int
    collections: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.rows} passages at {self.sizes} are in the collection {self.collection}; "
            f"{self.loaded} rows were loaded in {self.seconds:.1f} s"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def load(
    stores: Mapping[Size, EmbeddingStore],
    uri: str,
    collection: str,
    *,
    token: str | None = None,
    index: str = "FLAT",
    index_params: Mapping[str, Any] | None = None,
    batch_rows: int | None = None,
    patience: float = 60.0,
) -> LoadSummary:
    """Put the passages of `stores`, which hold the same ones at several sizes, into Milvus, ready to be searched.

    `uri`: http://host:19530, or x.db for Milvus Lite; `token`: user:password. Every size becomes a vector field with an
    index of type `index` and `index_params` by inner product, as Milvus names them. The primary key is the row of the
    store. Every shard is a partition (several shards, where there are more than 512); whole partitions of an earlier
    run are kept, broken ones are loaded anew. `batch_rows`: rows per call; `patience`: seconds to wait for a Milvus
    that does not answer.

    Raises UserError for stores that do not belong together, a collection that holds something else, and what Milvus
    refuses.
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
        raise UserError(f"{batch_rows} rows per call are below 1", "leave it out")
    card = CollectionMetadata.of(stores)
    connection = Connection(uri, token, patience)
    try:
        homes = make_collections(connection, collection, card)
        loaded = 0
        for home in homes:
            own = {size: stores[size] for size in home.card.fields}
            loaded += _fill(connection, home, own, batch_rows)
            _index(connection, home, index.upper(), index_params or {})
    finally:
        connection.close()
    return LoadSummary(
        collection=collection,
        sizes=", ".join(map(str, card.fields)),
        rows=card.count,
        loaded=loaded,
        collections=len(homes),
        seconds=time.monotonic() - began,
    )


def _fill(
    connection: Connection, home: Collection, stores: Mapping[Size, EmbeddingStore], batch_rows: int | None
) -> int:
    """Load every partition that is not whole. Returns how many rows were sent."""
    sent = 0
    for _ in range(_ROUNDS):
        broken = _broken(connection, home)
        if not broken:
            return sent
        # A partition can be dropped only while nothing of the collection is held for search.
        connection.call("release_collection", home.name)
        there = set(connection.call("list_partitions", home.name))
        for name, start, stop in progress(broken, len(broken), "partitions", f"load {home.name}"):
            if name in there:
                connection.call("drop_partition", home.name, name)
            connection.call("create_partition", home.name, name)
            for rows in _rows(stores, start, stop, batch_rows):
                connection.call("insert", home.name, rows, partition_name=name)
            sent += stop - start
    if broken := _broken(connection, home):
        raise UserError(
            f"{len(broken)} partitions of {home.name} do not have the rows that were loaded: {broken[0][0]}, …",
            "look at the Milvus server, then run the same command again",
        )
    return sent


def _broken(connection: Connection, home: Collection) -> list[tuple[str, int, int]]:
    """Partitions that are absent, or hold more or fewer rows than they should."""
    connection.call("flush", home.name)  # rows are counted once they are written
    there = set(connection.call("list_partitions", home.name))
    return [
        (name, start, stop)
        for name, start, stop in home.card.partitions()
        if name not in there
        or int(connection.call("get_partition_stats", home.name, name)["row_count"]) != stop - start
    ]


def _rows(
    stores: Mapping[Size, EmbeddingStore], start: int, stop: int, batch_rows: int | None
) -> Iterator[list[dict[str, Any]]]:
    at_once = batch_rows or max(1, _MESSAGE // (4 * sum(size.dim for size in stores)))
    for low in range(start, stop, at_once):
        high = min(low + at_once, stop)
        read = {size: store.consecutive(low, high) for size, store in stores.items()}
        ids = next(iter(read.values()))[0]
        for size, (others, _) in read.items():
            if others != ids:
                raise UserError(f"rows {low} to {high} have other ids at {size}", "encode all sizes in one go")
        columns = {field_name(size): vectors.astype(np.float32) for size, (_, vectors) in read.items()}
        yield [
            {ROW: low + i, DOCID: docid} | {name: vectors[i] for name, vectors in columns.items()}
            for i, docid in enumerate(ids)
        ]


def _index(connection: Connection, home: Collection, kind: str, parameters: Mapping[str, Any]) -> None:
    """Build the indexes unless they are there, hold the collection for search and say that it is complete."""
    # What the server describes is no help: Milvus Lite keeps quiet about parameters.
    wanted = " ".join([kind, *(f"{name}={value}" for name, value in sorted(parameters.items()))])
    if home.index != wanted:
        there = set(connection.call("list_indexes", home.name))
        if there:
            connection.call("release_collection", home.name)
        for name in map(field_name, home.card.fields):
            if name in there:
                connection.call("drop_index", home.name, name)
            log.info("index %s of %s: %s", name, home.name, wanted)
            connection.call("create_index", home.name, connection.index(name, kind, dict(parameters)))
    connection.call("load_collection", home.name)
    mark_complete(connection, home, wanted)
