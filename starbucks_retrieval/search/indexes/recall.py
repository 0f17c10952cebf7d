"""How much of the exact results an index finds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.indexes.saved import RESCORE, SavedIndex


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """`size` different rows of `count`, or all where there are no more: random, ascending."""
    if size < 1:
        raise UserError(f"a sample of {size} is no sample", "give 1 or more")
    if size >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False, shuffle=False))


def recall(
    saved: SavedIndex,
    queries: np.ndarray,
    depth: int = 1000,
    *,
    exact: np.ndarray | None = None,
    at: tuple[int, ...] = (10, 100),
    parameters: Mapping[str, float] | None = None,
    rescore: int | None = RESCORE,
    max_memory: str | int = "2GB",
    threads: int | None = None,
) -> dict[str, float]:
    """The share of the exact best k that are among an index's best k, for each k of `at`: {"recall@10": 0.98, …}.

    A mean over `queries` [queries, dim]. `exact`: rows that `exact_search` finds for them [queries, k or more]; found
    here when there are none. `depth`, `parameters` and `rescore` are those of the search that is measured; a k beyond
    `depth` or the corpus is left out, and where that leaves none, k is the smaller of these two.
    """
    deepest = min(depth, saved.store.count)
    cuts = sorted({k for k in at if 1 <= k <= deepest}) or [deepest]
    rows, _ = saved.search(
        queries, depth, parameters=parameters, rescore=rescore, max_memory=max_memory, threads=threads
    )
    if exact is None:
        label = "exact search, to compare"
        found = exact_search(
            queries, saved.store, cuts[-1], batch_size=-1, max_memory=max_memory, threads=threads, label=label
        )
        exact = np.concatenate([lines for lines, _ in found])
    if len(exact) != len(rows) or exact.shape[1] < cuts[-1]:
        raise ValueError(f"exact results of shape {exact.shape} for {len(rows)} queries at {cuts[-1]}")
    return {
        f"recall@{k}": float(np.mean([np.isin(right[:k], own[:k]).mean() for right, own in zip(exact, rows)]))
        for k in cuts
    }
