"""What `--engine auto` stands for. Nothing here imports FAISS or torch."""

from __future__ import annotations

import sys

from starbucks_retrieval.search.engines import FEW
from starbucks_retrieval.search.loops import will_be_compiled
from starbucks_retrieval.store import EmbeddingStore

_MANY_PRODUCTS = 1e11  # multiplications by which torch gains the time that importing it takes
_MANY_SCORES = 2e9  # scores by which its compiled loops gain the time of the import and of compiling them
_MANY_ONCE_IMPORTED = 5e8  # multiplications that take FAISS longer than torch
_SHORT_VECTOR = 32  # dimensions up to which FAISS is at least as fast as torch without compiled loops


def choose_engine(
    engine: str, device: str | None, dtype: str, queries: int, store: EmbeddingStore, at_once: int | None = None
) -> str:
    """Return the engine that `auto` stands for; any other name is returned as it is.

    Importing torch takes seconds, so a process that has imported it takes it for less work (bench/README.md, Exact search).

    Args:
        engine: `auto` or a name of `ENGINES`.
        device, dtype: As in `EngineOptions`; one that is given selects torch.
        queries: Queries that are searched.
        store: The passages that are scanned.
        at_once: Queries of a batch; None: all.
    """
    if engine != "auto":
        return engine
    if device not in (None, "cpu") or dtype != "auto":
        return "torch"
    scores, dim = queries * store.count, store.spec.size.dim
    compiled = will_be_compiled(scores)
    if (at_once or queries) < FEW or (dim <= _SHORT_VECTOR and not compiled):
        return "faiss"
    many = _MANY_ONCE_IMPORTED if "torch" in sys.modules else _MANY_PRODUCTS
    return "torch" if scores * dim >= many or (compiled and scores >= _MANY_SCORES) else "faiss"
