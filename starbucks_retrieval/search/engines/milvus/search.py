"""Searching a collection in Milvus: shortlists of one size, vectors of any for rescoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.milvus.collections import (
    DOCID,
    Collection,
    check_name,
    field_name,
    find_collections,
)
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.funnel.funnel import Funnel
from starbucks_retrieval.search.scores import best, score_candidates
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec

Results = tuple[np.ndarray, np.ndarray]
DEEPEST = 16384  # passages per query that a server returns
_ANSWER = 200_000  # hits per call: a few MB
_FETCHED = 2**23  # bytes of vectors per call


class MilvusCollection:
    """What `load` put into Milvus, open for search.

    `sizes`: the sizes it has, ascending; `count`: its rows. Raises UserError for a collection that is absent, half
    loaded or not ours, and for a Milvus that does not answer for `patience` seconds.
    """

    def __init__(self, uri: str, collection: str, *, token: str | None = None, patience: float = 60.0) -> None:
        check_name(collection)
        self.connection = Connection(uri, token, patience)
        homes = find_collections(self.connection, collection)
        if not homes:
            raise UserError(
                f"there is no collection {collection} at {self.connection.shown}", "load the passages first"
            )
        for home in homes:
            if home.index is None:
                raise UserError(f"the collection {home.name} is half loaded", "run the same load again; it goes on")
            self.connection.call("load_collection", home.name)
        self._homes = {size: home for home in homes for size in home.card.fields}
        self.sizes = sorted(self._homes)
        self.count = homes[0].card.count

    def at(self, size: Size, params: Mapping[str, Any] | None = None) -> MilvusField:
        """One size of it; `params` of the index for searching, such as nprobe or ef. Raises UserError if absent."""
        if size not in self._homes:
            raise UserError(f"the collection has no size {size}", f"it has {', '.join(map(str, self.sizes))}")
        return MilvusField(self.connection, self._homes[size], size, params or {})

    def check(self, queries: StoreSpec) -> None:
        """Raise UserError unless the queries were encoded as these passages were."""
        self.at(queries.size).home.card.check(queries)

    def close(self) -> None:
        """Let go of the server or the file."""
        self.connection.close()


class MilvusField:
    """The vectors of one size. Rows are those of the store that was loaded."""

    def __init__(self, connection: Connection, home: Collection, size: Size, params: Mapping[str, Any]) -> None:
        self.home = home
        self.size = size
        self.count = home.card.count
        self.largest_norm = home.card.fields[size].largest_norm
        self._connection = connection
        self._name = field_name(size)
        self._params = {"metric_type": "IP", "params": dict(params)}
        self._seen: dict[int, bytes] = {-1: b""}  # docids that came with the hits of the last search

    def search(self, queries: np.ndarray, depth: int) -> Results:
        """The nearest rows to queries [queries, dim], and scores as Milvus computes them: both [queries, depth].

        Ordered by score, then docid, both descending; Milvus is asked for a few more, since it orders equal scores as it
        likes. Where an index finds fewer, rows of -1 with scores of -inf follow. Raises UserError for a depth below 1 or
        beyond what Milvus returns.
        """
        queries = self._checked(queries, depth)
        depth = min(depth, self.count)
        asked = min(depth + 32 + depth // 32, self.count, DEEPEST)
        rows = np.full((len(queries), asked), -1, np.int64)
        scores = np.full((len(queries), asked), -np.inf, np.float32)
        self._seen = {-1: b""}
        at_once = max(1, _ANSWER // asked)
        for start in range(0, len(queries), at_once):
            answer = self._connection.call(
                "search",
                self.home.name,
                data=list(queries[start : start + at_once]),
                anns_field=self._name,
                limit=asked,
                search_params=self._params,
                output_fields=[DOCID],
            )
            for line, hits in enumerate(answer, start):
                found = list(hits.ids)
                rows[line, : len(found)] = found
                scores[line, : len(found)] = list(hits.distances)
                self._seen.update((row, hit["entity"][DOCID].encode()) for row, hit in zip(found, hits))
        return best(rows, scores, depth, self)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Vectors of the given rows, in their order: [len(rows), dim] float32."""
        rows = np.asarray(rows, np.int64)
        gathered = np.empty((len(rows), self.size.dim), np.float32)
        at_once = max(1, min(8192, _FETCHED // (4 * self.size.dim)))
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            found = self._fetch(some, self._name)
            gathered[start : start + len(some)] = [found[row] for row in some.tolist()]
        return gathered

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """Ids of the given rows, in their order, as UTF-8."""
        wanted = np.asarray(rows, np.int64).tolist()
        missing = np.array(sorted(set(wanted) - self._seen.keys()), np.int64)
        ids = dict(self._seen)
        for start in range(0, len(missing), 8192):
            ids.update(
                (row, docid.encode()) for row, docid in self._fetch(missing[start : start + 8192], DOCID).items()
            )
        return [ids[row] for row in wanted]

    def ids(self, rows: np.ndarray) -> list[str]:
        """Ids of the given rows, in their order."""
        return [docid.decode() for docid in self.id_bytes(rows)]

    def _fetch(self, rows: np.ndarray, field: str) -> dict[int, Any]:
        answer = self._connection.call("get", self.home.name, ids=rows.tolist(), output_fields=[field])
        found = {int(entity["row"]): entity[field] for entity in answer}
        if len(found) < len(np.unique(rows)):
            raise UserError(f"rows of {self.home.name} are gone from Milvus", "run the same load again")
        return found

    def _checked(self, queries: np.ndarray, depth: int) -> np.ndarray:
        if depth < 1:
            raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
        if min(depth, self.count) > DEEPEST:
            raise UserError(f"Milvus returns at most {DEEPEST} passages per query, not {depth}", "lower --depth")
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.size.dim:
            raise UserError(
                f"queries of shape {queries.shape} do not fit passages of {self.size.dim} dimensions",
                "take queries and passages of one size",
            )
        bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
        if len(bad):
            raise UserError(
                f"the embedding of query {bad[0]} (from 0) has NaN or infinity", "check the model and its dtype"
            )
        return queries


def milvus_search(
    queries: np.ndarray,
    collection: MilvusCollection,
    size: Size,
    depth: int = 1000,
    params: Mapping[str, Any] | None = None,
    *,
    batch_size: int = 256,
) -> Iterator[Results]:
    """The `depth` nearest passages of each query, in batches of queries, in order: see `MilvusField.search`.

    With the index FLAT these are the ones that exact search finds, but for passages whose scores single precision does
    not tell apart.
    """
    field = collection.at(size, params)
    for start in range(0, len(queries), batch_size):
        yield field.search(queries[start : start + batch_size], depth)


def milvus_funnel(
    queries: Mapping[Size, np.ndarray],
    collection: MilvusCollection,
    funnel: Funnel,
    params: Mapping[str, Any] | None = None,
    *,
    batch_size: int = 64,
) -> Iterator[Results]:
    """What comes out of a funnel whose first step Milvus searches, and whose vectors it holds: batch by batch.

    `queries`: for each size of the funnel [queries, dim]. The vectors of a shortlist are fetched and scored here, so the
    scores are the exact inner products at the last size, ties by docid. Raises UserError as `MilvusField.search`.
    """
    funnel = funnel.at_depth()
    fields = {size: collection.at(size, params) for size in funnel.sizes}
    for size in funnel.sizes:
        if size not in queries:
            raise UserError(f"there are no queries of size {size}", "encode the queries at all sizes of the funnel")
    first = funnel.steps[0]
    assert first.keep is not None
    for start in range(0, len(queries[first.size]), batch_size):
        rows, scores = fields[first.size].search(queries[first.size][start : start + batch_size], first.keep)
        for step in funnel.steps[1:] or funnel.steps:
            rows, scores = _rescore(queries[step.size][start : start + batch_size], rows, fields[step.size])
            rows, scores = rows[:, : step.keep], scores[:, : step.keep]
        yield rows, scores


def _rescore(queries: np.ndarray, rows: np.ndarray, field: MilvusField) -> Results:
    found = rows >= 0
    known = np.where(found, rows, 0)  # any row will do where none was found
    scores = score_candidates(np.ascontiguousarray(queries, np.float32), known, field, 2**16)
    return best(rows, np.where(found, scores, np.float32(-np.inf)), rows.shape[1], field)
