"""Checks of queries before a search starts."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.funnel import check_depth
from starbucks_retrieval.store import EmbeddingStore


def check_queries(queries: np.ndarray, store: EmbeddingStore, depth: int, batch_size: int = -1) -> np.ndarray:
    """Check queries and flags before a search starts, and return the queries as contiguous float32.

    Args:
        queries: [queries, dim].
        store: The passages.
        depth: Passages per query.
        batch_size: Queries per pass over the passages; -1: as many as fit in memory.

    Raises:
        UserError: The queries have another shape or dim, NaN or infinity, or are so long that scores may exceed
            float32; the depth is below 1; the batch size is neither -1 nor 1 or more.
    """
    check_depth(depth)
    if batch_size < 1 and batch_size != -1:
        raise UserError(f"--batch_size {batch_size} is not a number of queries", "give 1 or more, or -1 for all")
    return check_vectors(queries, store.spec.size.dim, store.largest_norm)


def check_vectors(queries: np.ndarray, dim: int, largest_norm: float) -> np.ndarray:
    """Check the values of queries, and return them as contiguous float32.

    Args:
        queries: [queries, dim].
        dim: Dimensions of the passages.
        largest_norm: A length that no passage exceeds.

    Raises:
        UserError: The queries have another shape or dim, NaN or infinity, or are so long that scores may exceed float32.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(
            f"queries of shape {queries.shape} do not fit passages of {dim} dimensions",
            "use queries and passages of one size",
        )
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(bad):
        raise UserError(
            f"the embedding of query {bad[0]} (from 0) has NaN or infinity", "check the model and its dtype"
        )
    longest = float(np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1).max(initial=0)))
    if longest * largest_norm > float(np.finfo(np.float32).max) / 2:
        raise UserError("these embeddings are so long that scores do not fit single precision", "encode normalised")
    return queries
