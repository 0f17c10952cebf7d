"""Scores of a sample of the passages, which tell what a search can skip from the beginning."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines import FEW, MemoryPlan
from starbucks_retrieval.search.engines.scored_rows import convert
from starbucks_retrieval.search.ranking import ranked_scores
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.threads import share_lines, torch_threads

_EXPECTED, _SAMPLED, _RUN = 32, 2**16, 32  # candidates in a sample; its passages at most, in runs of consecutive ones


class SampledScores(NamedTuple):
    """Approximate scores, all [queries] float32.

    Attributes:
        low: So low that at least as many passages as candidates are wanted exceed it, nearly always.
        likely: So many passages probably reach it.
    """

    low: np.ndarray
    likely: np.ndarray


def sampled_scores(
    queries: Tensor, store: EmbeddingStore, plan: MemoryPlan, candidates: int, loops: ModuleType | None = None
) -> SampledScores | None:
    """Score a sample of the store, which holds about `expected` of a query's candidates, give or take its root.

    Two of these deviations lower is the likely score, four the low one.

    Args:
        queries: [queries, dim] of the dtype that is multiplied, on a CPU.
        store: The passages.
        plan: How much to read at once.
        candidates: Passages wanted for each query.
        loops: What `compiled_loops` returns.

    Returns:
        The scores; None where the lists are so short that scoring a sample costs more than it saves.
    """
    sampled = min(_EXPECTED * store.count // candidates, plan.block // 4, _SAMPLED) // _RUN * _RUN
    expected = candidates * sampled / store.count
    likely, low = (int(expected + deviations * expected**0.5 + deviations) for deviations in (2, 4))
    if len(queries) < FEW or 16 * sampled > store.count or expected < _EXPECTED / 8 or 4 * low > sampled:
        return None
    starts = np.linspace(0, store.count - _RUN, sampled // _RUN).astype(np.int64)
    sample = torch.empty(sampled, store.spec.size.dim, dtype=queries.dtype)
    convert(store.vectors((starts[:, None] + np.arange(_RUN)).ravel()), sample, loops)
    found = np.empty((2, len(queries)), np.float32)

    def score(lines: slice) -> None:
        found[:, lines] = ranked_scores((queries[lines] @ sample.T).float().numpy(), (low, likely))

    threads = torch.get_num_threads()
    with torch_threads(1):  # others would wait for its products while NumPy's threads work
        share_lines(len(queries), len(queries) * sampled, threads, score)
    return SampledScores(np.nextafter(found[0], np.float32(-np.inf)), found[1])  # equal scores exceed it
