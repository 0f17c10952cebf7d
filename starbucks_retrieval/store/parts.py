"""The vectors of a store where they lie, for callers that read some of its rows without a copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from starbucks_retrieval.store.memory import MemoryStore
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.shards import checked_rows


def has_parts(store: object) -> bool:
    """Return whether the vectors of a store are arrays in memory or in mapped files: not codes, and not a view."""
    return type(store) is MemoryStore or (type(store) is EmbeddingStore and store.spec.quantiser is None)


def parts_with(store: EmbeddingStore, ascending: np.ndarray) -> Iterator[tuple[slice, int, np.ndarray]]:
    """Yield the arrays that hold some rows of a store that `has_parts`.

    Args:
        store: The store.
        ascending: Row numbers from 0, ascending; a row may occur several times.

    Returns:
        An iterator over (the positions in `ascending` of the rows that an array holds, its first row, the array [any,
        dim], which may not be written to). Of a mapped file, only the rows that are asked for are compared with checksums.

    Raises:
        IndexError: A row is negative, or not below `store.count`.
        UserError: A file is damaged, when it is reached.

    Example:
        >>> from starbucks_retrieval.search.stores import array_spec
        >>> from starbucks_retrieval.sizes import Size
        >>> store = MemoryStore(array_spec(2, Size(1, 3)), ["a", "b"], np.eye(2, 3, dtype=np.float32))
        >>> [(positions, first, vectors.shape) for positions, first, vectors in parts_with(store, np.array([0, 0, 1]))]
        [(slice(0, 3, None), 0, (2, 3))]
    """
    ascending = checked_rows(ascending, store.count)
    if isinstance(store, MemoryStore):
        yield slice(0, len(ascending)), 0, store.rows(0, store.count)
        return
    for shard, low, high in store._by_shard(ascending):
        yield slice(low, high), shard.start, shard.vectors.with_rows(ascending[low:high] - shard.start)
