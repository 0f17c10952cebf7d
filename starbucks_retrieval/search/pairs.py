"""Queries and passages that belong together: of one size, or of two layers that a model makes comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.stores import PassageReps, Stores, check_together, open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, check_same, open_store


def cut_query_size(query_size: Size, size: Size) -> Size:
    """Return the size of queries that are cut to the dims of passages.

    Args:
        query_size: The layer of the queries, and the dims that they have.
        size: The size of the passages.

    Raises:
        UserError: The passages have more dims.

    Example:
        >>> str(cut_query_size(Size(1, 128), Size(6, 32)))
        '1:32'
    """
    if query_size.dim < size.dim:
        raise UserError(
            f"--query_size {query_size} has fewer dims than the passages at {size}",
            f"use queries of {size.dim} dims or more: longer ones are cut",
        )
    return Size(query_size.layer, size.dim)


def open_pair(
    query_reps: str | Path, passage_reps: str | Path, size: Size | None, query_size: Size | None = None
) -> tuple[Stores, Stores]:
    """Open queries and their passages at one size, as stored or cut from a wider one, both keyed by that size.

    Args:
        query_reps: Where the queries are stored.
        passage_reps: Where the passages are stored.
        size: The size of the queries, as for `open_pairs`, or of the passages, if `query_size` is given; None for the
            only one.
        query_size: The size of the queries, if their layer is another one.

    Raises:
        UserError: A size is not stored, or there are several and none is named.
    """
    if size is None and query_size is not None:
        size = only_passage_size(passage_reps, query_size)
    if size is not None:
        return open_pairs(query_reps, passage_reps, [size], {size: query_size} if query_size is not None else None)
    queries, passages = open_store(query_reps), open_store(passage_reps)
    return {queries.spec.size: queries}, {queries.spec.size: passages}


def open_pairs(
    query_reps: str | Path,
    passage_reps: str | Path,
    sizes: Iterable[Size],
    query_sizes: Mapping[Size, Size] | None = None,
) -> tuple[Stores, Stores]:
    """Open queries and passages at several sizes, as stored or cut from wider ones.

    Mostly both have the same size; queries of a model that was trained with other layers for the two name the size of
    the passages that they are scored against.

    Args:
        query_reps: Where the queries are stored.
        passage_reps: Where the passages are stored.
        sizes: The sizes of the queries; of the passages, for those in `query_sizes`.
        query_sizes: {size of passages: size of the queries}, where the layers differ.

    Returns:
        Stores of the queries and stores of the passages, both keyed by `sizes`.

    Raises:
        UserError: Queries or passages are stored neither at a needed size nor at a wider one of its layer.
    """
    given = query_sizes or {}
    named = {size: given.get(size, size) for size in sizes}
    found = _open_queries(query_reps, dict.fromkeys(named.values()))
    queries = {size: found[at] for size, at in named.items()}
    wanted = {size: size if size in given else store.spec.passage_size for size, store in queries.items()}
    try:
        passages = open_sizes(passage_reps, dict.fromkeys(wanted.values()))
    except UserError as error:
        other = [(size, at) for size, at in wanted.items() if size != at]
        if not other:
            raise
        size, at = other[0]
        what = f"{error.what}; queries at {size} of this model are scored against passages at {at}"
        raise UserError(what, error.hint) from None
    return queries, {size: passages[at] for size, at in wanted.items()}


def _open_queries(reps: str | Path, sizes: Iterable[Size]) -> Stores:
    try:
        return open_sizes(reps, sizes)
    except UserError as error:
        shared = [size for size in stored_sizes(reps) if open_store(reps, size).spec.shared_space]
        if not shared:
            raise
        hint = f"{error.hint}; passages of any layer can be searched with --query_size {shared[0]}"
        raise UserError(error.what, hint) from None


def only_passage_size(reps: PassageReps, query_size: Size) -> Size:
    """Return the size of the passages that queries are searched against, where only one layer is stored.

    Args:
        reps: Where the passages are stored, an open store, or several by size.
        query_size: The size of the queries, whose dim the result has.

    Raises:
        UserError: There are several layers, or none with as many dims.
    """
    stored = stored_sizes(reps)
    layers = sorted({size.layer for size in stored if size.dim >= query_size.dim})
    if len(layers) == 1:
        return Size(layers[0], query_size.dim)
    listed = ", ".join(map(str, stored))
    if not layers:
        raise UserError(
            f"no passages have the {query_size.dim} dims of --query_size {query_size}: they are stored at {listed}",
            "use queries of fewer dims: longer ones are cut",
        )
    raise UserError(
        f"--query_size {query_size} does not say which passages are searched: they are stored at {listed}",
        f"name theirs too, such as --size {layers[-1]}:{query_size.dim}",
    )


def searchable_sizes(query_reps: str | Path, passage_reps: str | Path, query_size: Size | None = None) -> list[Size]:
    """Return the sizes of queries at which the stored passages can be searched, ascending.

    For most models these are the sizes of the passages; `open_sizes` may have to cut the queries from wider ones. For a
    model that scores queries of one layer against passages of another, they are the stored sizes of the queries whose
    `passage_size` is stored.

    Args:
        query_reps: Where the queries are stored.
        passage_reps: Where the passages are stored.
        query_size: The size of the queries, if they are searched against passages of other layers; the result is then
            the sizes of the passages that have as many dims at most.

    Raises:
        UserError: There is no store at one of the two paths, or it cannot be opened.
    """
    stored = stored_sizes(passage_reps)
    if query_size is not None:
        return [size for size in stored if size.dim <= query_size.dim]
    queries = open_sizes(query_reps, stored_sizes(query_reps)).values()
    if not any(store.spec.space for store in queries):
        return stored
    return [store.spec.size for store in queries if store.spec.passage_size in stored]


def check_stores(
    queries: Mapping[Size, EmbeddingStore], passages: Mapping[Size, EmbeddingStore], override: bool = False
) -> None:
    """Raise UserError unless the stores hold queries and passages of one model at sizes that belong together.

    Args:
        queries: Stores of the queries, by size.
        passages: Stores of the passages, by the size of the queries.
        override: Accept passages as queries and queries as passages.
    """
    for size, store in passages.items():
        query_store = queries.get(size) or next(iter(queries.values()))
        if not override:
            _check_kinds(query_store.spec.kind, store.spec.kind)
        check_same(query_store.spec, store.spec)
    check_together(queries, queries)
    check_together(passages, passages)


def _check_kinds(queries: str, passages: str) -> None:
    symmetric = "--override accepts them, for tasks whose two sides are of one kind"
    if (queries, passages) == ("passages", "queries"):
        raise UserError("--query_reps holds passages and --passage_reps holds queries", "swap the two")
    if queries != "queries":
        raise UserError(
            "--query_reps holds passages: they were encoded without --encode_is_query",
            f"encode (or store import) the queries again with --encode_is_query; {symmetric}",
        )
    if passages != "passages":
        raise UserError(
            "--passage_reps holds queries: they were encoded with --encode_is_query",
            f"encode (or store import) the passages again without --encode_is_query; {symmetric}",
        )
