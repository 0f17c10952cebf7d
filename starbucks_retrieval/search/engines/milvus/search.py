"""Searching a Milvus collection: shortlists of one size, and vectors of any size for rescoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import SearchResults
from starbucks_retrieval.search.engines.milvus.collections import (
    DOCID,
    Collection,
    check_name,
    field_name,
    find_collections,
)
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.funnel import Funnel, check_depth
from starbucks_retrieval.search.queries import check_vectors
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.scores import score_candidates
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec

LARGEST_DEPTH = 16384  # passages per query that a server returns
_HITS_PER_CALL = 200_000  # a few MB
_BYTES_PER_CALL = 2**23  # of vectors


class MilvusCollection:
    """A collection that `load_stores` loaded, open for search.

    Args:
        uri: http://host:19530, or x.db for Milvus Lite.
        collection: Its name.
        token: user:password.
        timeout: Seconds to wait for a Milvus that does not answer.

    Attributes:
        sizes: The sizes that it has, ascending.
        count: Its rows.

    Raises:
        UserError: The collection is missing, incomplete or foreign, or Milvus does not answer.
    """

    def __init__(self, uri: str, collection: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        check_name(collection)
        self.connection = Connection(uri, token, timeout)
        found = find_collections(self.connection, collection)
        if not found:
            raise UserError(
                f"there is no collection {collection} at {self.connection.shown}", "load the passages first"
            )
        for one in found:
            if one.index is None:
                raise UserError(
                    f"the collection {one.name} is incomplete", "run the same command that loads it again; it resumes"
                )
            self.connection.call("load_collection", one.name)
        self._collections = {size: one for one in found for size in one.metadata.fields}
        self.sizes = sorted(self._collections)
        self.count = found[0].metadata.count

    def at(self, size: Size, params: Mapping[str, Any] | None = None) -> MilvusField:
        """Return the vector field of a size.

        Args:
            size: One of `sizes`.
            params: Search parameters of the index, such as nprobe or ef.

        Raises:
            UserError: The collection does not have the size.
        """
        if size not in self._collections:
            raise UserError(f"the collection has no size {size}", f"it has {', '.join(map(str, self.sizes))}")
        return MilvusField(self.connection, self._collections[size], size, params or {})

    def check(self, queries: StoreSpec) -> None:
        """Raise UserError unless the queries were encoded as these passages were."""
        self.at(queries.size).collection.metadata.check(queries)

    def close(self) -> None:
        """Disconnect from the server, or close the file."""
        self.connection.close()


class MilvusField:
    """The vector field of one size. Rows are those of the store that was loaded.

    Args:
        connection: Where the collection is.
        collection: The collection that has the field; it is loaded and indexed.
        size: The size of the field.
        params: Search parameters of the index, such as nprobe or ef; empty: the defaults of Milvus.

    Attributes:
        count: Rows.
        largest_norm: A length that no vector of the field exceeds.
    """

    def __init__(self, connection: Connection, collection: Collection, size: Size, params: Mapping[str, Any]) -> None:
        self.collection = collection
        self.size = size
        self.count = collection.metadata.count
        self.largest_norm = collection.metadata.fields[size].largest_norm
        self._connection = connection
        self._name = field_name(size)
        self._params = {"metric_type": "IP", "params": dict(params)}
        self._known_ids: dict[int, bytes] = {-1: b""}  # docids of the hits of the last search

    def search(self, queries: np.ndarray, depth: int) -> SearchResults:
        """Find the nearest rows of queries by the scores of Milvus.

        A few more rows are requested, because Milvus orders equal scores arbitrarily.

        Args:
            queries: [queries, dim].
            depth: Passages per query; a smaller collection gives as many as it has.

        Returns:
            Rows and scores, both [queries, depth], ordered by score, then docid, both descending. Where an index finds
            fewer, rows of -1 with scores of -inf follow.

        Raises:
            UserError: The depth is below 1 or above the limit of Milvus, `check_vectors` refuses the queries, or Milvus
                refuses the call or does not answer.
        """
        if min(check_depth(depth), self.count) > LARGEST_DEPTH:
            raise UserError(f"Milvus returns at most {LARGEST_DEPTH} passages per query, not {depth}", "lower --depth")
        queries = check_vectors(queries, self.size.dim, self.largest_norm)
        depth = min(depth, self.count)
        requested = min(depth + 32 + depth // 32, self.count, LARGEST_DEPTH)
        rows = np.full((len(queries), requested), -1, np.int64)
        scores = np.full((len(queries), requested), -np.inf, np.float32)
        self._known_ids = {-1: b""}
        at_once = max(1, _HITS_PER_CALL // requested)
        for start in range(0, len(queries), at_once):
            answer = self._connection.call(
                "search",
                self.collection.name,
                data=list(queries[start : start + at_once]),
                anns_field=self._name,
                limit=requested,
                search_params=self._params,
                output_fields=[DOCID],
            )
            for line, hits in enumerate(answer, start):
                found = list(hits.ids)
                rows[line, : len(found)] = found
                scores[line, : len(found)] = list(hits.distances)
                self._known_ids.update((row, hit["entity"][DOCID].encode()) for row, hit in zip(found, hits))
        return best(rows, scores, depth, self)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of the given rows, in their order: [len(rows), dim] float32."""
        rows = np.asarray(rows, np.int64)
        gathered = np.empty((len(rows), self.size.dim), np.float32)
        at_once = max(1, min(8192, _BYTES_PER_CALL // (4 * self.size.dim)))
        for start in range(0, len(rows), at_once):
            chunk = rows[start : start + at_once]
            found = self._fetch(chunk, self._name)
            gathered[start : start + len(chunk)] = [found[row] for row in chunk.tolist()]
        return gathered

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """Return the ids of the given rows, in their order, as UTF-8."""
        wanted = np.asarray(rows, np.int64).tolist()
        missing = np.array(sorted(set(wanted) - self._known_ids.keys()), np.int64)
        ids = dict(self._known_ids)
        for start in range(0, len(missing), 8192):
            ids.update(
                (row, docid.encode()) for row, docid in self._fetch(missing[start : start + 8192], DOCID).items()
            )
        return [ids[row] for row in wanted]

    def ids(self, rows: np.ndarray) -> list[str]:
        """Return the ids of the given rows, in their order."""
        return [docid.decode() for docid in self.id_bytes(rows)]

    def _fetch(self, rows: np.ndarray, field: str) -> dict[int, Any]:
        answer = self._connection.call("get", self.collection.name, ids=rows.tolist(), output_fields=[field])
        found = {int(entity["row"]): entity[field] for entity in answer}
        if len(found) < len(np.unique(rows)):
            raise UserError(
                f"rows of {self.collection.name} are missing in Milvus", "run the same command that loads it again"
            )
        return found


def milvus_search(
    queries: np.ndarray,
    collection: MilvusCollection,
    size: Size,
    depth: int = 1000,
    params: Mapping[str, Any] | None = None,
    *,
    batch_size: int = 256,
) -> Iterator[SearchResults]:
    """Find the `depth` nearest passages of each query in batches of queries, in order, as `MilvusField.search`.

    With the index FLAT they are those of exact search, except where single precision cannot order two passages.

    Args:
        queries: [queries, dim], all finite.
        collection: The passages.
        size: The size to search.
        depth: Passages per query.
        params: Search parameters of the index, such as nprobe or ef; None: the defaults of Milvus.
        batch_size: Queries per result.

    Returns:
        An iterator over (rows, scores) of a batch, both [batch, min(depth, passages)], best first. Where the index
        finds fewer passages, rows of -1 with scores of -inf follow.

    Raises:
        UserError: When iterated: the collection lacks the size, `MilvusField.search` refuses queries or depth, or
            Milvus refuses a call or does not answer.
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
    fields: Mapping[Size, Size] | None = None,
    batch_size: int = 64,
) -> Iterator[SearchResults]:
    """Search through a funnel whose first step Milvus searches and whose vectors it holds, batch by batch.

    The vectors of a shortlist are fetched and scored here: scores are exact inner products of the last size, ordered by
    score, then docid. The shortlist of a funnel with one step is rescored at the same size.

    Args:
        queries: [queries, dim] for each size of the funnel, in the same order.
        collection: The passages at all sizes of the funnel.
        funnel: The steps; the last one keeps 1000 passages if it does not say.
        params: Search parameters of the index, such as nprobe or ef; None: the defaults of Milvus.
        fields: {size of a step: size of its passages}, where they differ.
        batch_size: Queries per result.

    Returns:
        An iterator over (rows, scores) of a batch, both [batch, kept], best first. `kept` is what the last step keeps,
        or the number of passages if that is smaller. Where the index finds fewer passages, rows of -1 with scores of
        -inf follow.

    Raises:
        UserError: When iterated: queries or collection lack a size of the funnel, or `MilvusField.search` refuses
            queries or depth, or Milvus refuses a call or does not answer.
    """
    funnel = funnel.at_depth()
    held = {size: collection.at((fields or {}).get(size, size), params) for size in funnel.sizes}
    for size in funnel.sizes:
        if size not in queries:
            raise UserError(f"there are no queries of size {size}", "encode the queries at all sizes of the funnel")
    first = funnel.steps[0]
    assert first.keep is not None
    for start in range(0, len(queries[first.size]), batch_size):
        rows, scores = held[first.size].search(queries[first.size][start : start + batch_size], first.keep)
        for step in funnel.steps[1:] or funnel.steps:
            rows, scores = _rescore(queries[step.size][start : start + batch_size], rows, held[step.size])
            rows, scores = rows[:, : step.keep], scores[:, : step.keep]
        yield rows, scores


def _rescore(queries: np.ndarray, rows: np.ndarray, field: MilvusField) -> SearchResults:
    found = rows >= 0
    known = np.where(found, rows, 0)  # any row stands in where none was found
    scores = score_candidates(np.ascontiguousarray(queries, np.float32), known, field, 2**16)
    return best(rows, np.where(found, scores, np.float32(-np.inf)), rows.shape[1], field)
