"""search_vectors(): exact search over arrays in memory, or over stores, with results as dictionaries."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search.engine_choice import choose_engine
from starbucks_retrieval.search.engines import MAX_MEMORY, EngineOptions, make_candidate_generator
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.pairs import check_stores, open_pair
from starbucks_retrieval.search.stores import array_spec, open_sizes
from starbucks_retrieval.sizes import Size, parse_pair
from starbucks_retrieval.store import EmbeddingStore, MemoryStore, open_store
from starbucks_retrieval.store.shards import checked_rows

# A tensor or array [rows, dim], a list of rows, the path of a store, or an open store.
Vectors: TypeAlias = Any
_ROWS = 4096  # rows checked or read at once


def search_vectors(
    query_vectors: Vectors,
    passage_vectors: Vectors,
    k: int = 10,
    *,
    query_ids: Sequence[Hashable] | None = None,
    passage_ids: Sequence[Hashable] | None = None,
    size: Size | str | None = None,
    max_memory: int | str = MAX_MEMORY,
    threads: int | None = None,
) -> dict[Any, dict[Any, float]]:
    """Find the k passages of highest inner product for each query, exactly.

    Scores are inner products in double precision, rounded to float32, as in the runs of `starbucks search`; for vectors
    of length 1 they are cosines. What is returned is a run that `evaluate_run` scores.

    Args:
        query_vectors: A tensor, array or list of rows, [queries, dim] or [dim] for one query, of any number type; or
            the path of a store that `starbucks encode` wrote, or an open store.
        passage_vectors: The passages, likewise.
        k: Passages per query; fewer where there are fewer passages.
        query_ids: Ids of the rows of `query_vectors`; by default their numbers from 0. Stores have ids of their own.
        passage_ids: Ids of the rows of `passage_vectors`, likewise.
        size: Of stores with several sizes: "6:128", or "2:64/4:64" for queries at 2:64 and passages at 4:64.
        max_memory: Bytes for result lists and for vectors that are read from a store, as a number or as "2GB".
        threads: CPU threads; None: all.

    Returns:
        {query id: {passage id: score}}, best passage first. Of equal scores, the passage with the greater id is first,
        as in trec_eval.

    Raises:
        UserError: Vectors have different dims, NaN or infinity; ids are repeated or of another number than the rows;
            stores do not belong together.

    Example:
        >>> from starbucks_retrieval import search_vectors
        >>> passages = np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float16)
        >>> search_vectors([0.0, 1.0], passages, k=2, passage_ids=["hens", "moths", "eggs"])
        {0: {'moths': 1.0, 'eggs': 0.7998046875}}
    """
    if not isinstance(k, int | np.integer) or k < 1:
        raise UserError(f"k is {k!r}", "give a whole number from 1 on")
    max_memory = parse_bytes(max_memory)
    stored_queries, stored_passages = _open(query_vectors, passage_vectors, size)
    queries = _with_ids(stored_queries, query_vectors, query_ids, "query")
    passages = _with_ids(stored_passages, passage_vectors, passage_ids, "passage")
    engine = choose_engine("auto", None, "auto", queries.count, passages)
    generator = make_candidate_generator(
        engine if find_spec("faiss") else "torch", EngineOptions(threads=threads), passages.spec.size.dim
    )
    found: dict[Any, dict[Any, float]] = {}
    for start, block in queries.blocks(_ROWS, np.float32):
        names = iter(queries.ids(np.arange(start, start + len(block))))
        results = exact_search(block, passages, int(k), batch_size=-1, max_memory=max_memory, generator=generator)
        for rows, scores in results:
            distinct, positions = np.unique(rows, return_inverse=True)
            ids = passages.ids(distinct)  # each is read once
            lines: Any = positions.reshape(rows.shape).tolist()
            for line, ranked in zip(lines, scores.tolist()):
                found[next(names)] = {ids[position]: score for position, score in zip(line, ranked)}
    return found


def _open(queries: Vectors, passages: Vectors, size: Size | str | None) -> tuple[Any, Any]:
    """Return the stores behind paths and open stores, None for arrays. Raises UserError unless they belong together."""
    query_size, passage_size = parse_pair(size) if size is not None else (None, None)
    if isinstance(queries, str | os.PathLike) and isinstance(passages, str | os.PathLike):
        named = (query_size, None) if passage_size is None else (passage_size, query_size)
        query_stores, passage_stores = open_pair(os.fspath(queries), os.fspath(passages), *named)
        check_stores(query_stores, passage_stores)
        return next(iter(query_stores.values())), next(iter(passage_stores.values()))
    found = _open_one(queries, query_size), _open_one(passages, passage_size or query_size)
    if size is not None and found == (None, None):
        raise UserError(f"size {size} is given, but arrays have one size", "leave size out")
    if found[0] is not None and found[1] is not None:
        check_stores({found[0].spec.size: found[0]}, {found[0].spec.size: found[1]})
    return found


def _open_one(vectors: Vectors, size: Size | None) -> EmbeddingStore | None:
    if not isinstance(vectors, str | os.PathLike | EmbeddingStore):
        return None
    if size is not None:
        return open_sizes(vectors, [size])[size]
    return vectors if isinstance(vectors, EmbeddingStore) else open_store(vectors)


def _with_ids(
    store: EmbeddingStore | None, vectors: Vectors, ids: Sequence[Hashable] | None, kind: str
) -> EmbeddingStore:
    if store is None:
        return _ArrayStore(vectors, ids, kind)
    if ids is not None:
        raise UserError(f"{kind}_ids are given for a store, which has ids of its own", f"leave {kind}_ids out")
    return store


def _as_float32(vectors: Vectors, kind: str) -> np.ndarray:
    if isinstance(vectors, Mapping):
        sizes = ", ".join(map(str, list(vectors)[:6]))
        raise UserError(f"the {kind} vectors are a dictionary of {sizes}", "take one size of it, as vectors['2:32']")
    if hasattr(vectors, "detach"):  # a tensor, perhaps on a GPU or in bfloat16, which NumPy lacks
        vectors = vectors.detach().float().cpu()
    try:
        array = np.asarray(vectors)
    except ValueError:
        raise UserError(f"the {kind} vectors have different dims", "give rows of one length") from None
    if array.dtype.kind not in "fiu":
        raise UserError(
            f"the {kind} vectors are of type {array.dtype}, not numbers",
            "give an array [rows, dim]; of texts, encoder.encode(texts, '6:128')['6:128'] makes one",
        )
    array = np.ascontiguousarray(np.atleast_2d(array), np.float32)
    if array.ndim != 2 or not array.size:
        raise UserError(f"the {kind} vectors have the shape {array.shape}", "give at least one row: [rows, dim]")
    for start in range(0, len(array), _ROWS):
        bad = np.flatnonzero(~np.isfinite(array[start : start + _ROWS]).all(axis=1))
        if len(bad):
            raise UserError(
                f"the vector of {kind} {start + bad[0]} (from 0) has NaN or infinity", "check the model and its dtype"
            )
    return array


def _checked_ids(ids: Sequence[Hashable], count: int, kind: str) -> list[Any]:
    if isinstance(ids, str):
        raise UserError(f"{kind}_ids is one string", "give a list of ids")
    listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if len(listed) != count:
        raise UserError(f"{len(listed)} {kind}_ids for {count} rows", "give one id for each row, in their order")
    if len(set(listed)) < count:
        twice = next(docid for docid, number in Counter(listed).items() if number > 1)
        raise UserError(f"{kind}_ids has {twice!r} twice", "give each row its own id")
    return listed


class _ArrayStore(MemoryStore):
    """Vectors in memory, as exact search reads a store; without ids, those of the rows are their numbers."""

    def __init__(self, vectors: Vectors, ids: Sequence[Hashable] | None, kind: str) -> None:
        held = _as_float32(vectors, kind)
        super().__init__(array_spec(len(held), Size(1, held.shape[1])), [], held)
        self._ids = None if ids is None else _checked_ids(ids, len(held), kind)

    def ids(self, rows: np.ndarray) -> list[Any]:
        """Return the ids of the given rows as they were given."""
        numbers = checked_rows(rows, self.count).tolist()
        return numbers if self._ids is None else [self._ids[row] for row in numbers]

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """As EmbeddingStore.id_bytes; whole numbers sort by their value."""
        return [
            f"{docid:020d}".encode() if isinstance(docid, int) and docid >= 0 else str(docid).encode()
            for docid in self.ids(rows)
        ]
