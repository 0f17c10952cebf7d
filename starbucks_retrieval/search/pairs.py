"""Queries and passages that are searched together, by the size of the queries.

Mostly that is the size of the passages, too; a model trained with other depths for the two says in its stores of queries
which passages they are scored against.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.funnel.passage_slice import open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, open_store

Stores = dict[Size, EmbeddingStore]


def open_pair(query_reps: str | Path, passage_reps: str | Path, size: Size | None) -> tuple[Stores, Stores]:
    """The queries at a size, or at the only one, and their passages. Raises UserError for sizes that are not there."""
    queries = open_store(query_reps, size)
    wanted = size and queries.spec.passage_size
    try:
        passages = open_store(passage_reps, wanted)
    except UserError as error:
        if wanted == size:
            raise
        what = f"{error.what}; queries at {size} of this model are scored against passages at {wanted}"
        raise UserError(what, error.hint) from None
    return {queries.spec.size: queries}, {queries.spec.size: passages}


def open_pairs(query_reps: str | Path, passage_reps: str | Path, sizes: Iterable[Size]) -> tuple[Stores, Stores]:
    """The queries at several sizes and their passages, each cut from a wider store where it has to be."""
    queries = open_sizes(query_reps, sizes)
    wanted = {size: store.spec.passage_size for size, store in queries.items()}
    passages = open_sizes(passage_reps, dict.fromkeys(wanted.values()))
    return queries, {size: passages[other] for size, other in wanted.items()}


def searchable(query_reps: str | Path, passage_reps: str | Path) -> list[Size]:
    """The sizes of queries that stored passages can be searched at, ascending."""
    there = stored_sizes(passage_reps)
    queries = open_sizes(query_reps, stored_sizes(query_reps)).values()
    if not any(store.spec.space for store in queries):
        return there
    return [store.spec.size for store in queries if store.spec.passage_size in there]
