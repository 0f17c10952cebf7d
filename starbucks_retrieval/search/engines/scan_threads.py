"""Threads of torch that share the passages of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import torch

from starbucks_retrieval.cli import progress
from starbucks_retrieval.search.engines import MemoryPlan
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.threads import share, torch_threads

_READ = 2**22  # numbers to read at once: each time, a shard is opened and mapped
_PRODUCTS_PER_THREAD = 10**8  # starting a thread takes as long as a fraction of them


class Scan(Protocol):
    def add(self, first: int, stored: np.ndarray) -> None:
        """Add the consecutive passages from row `first` on: [any, dim]."""


AnyScan = TypeVar("AnyScan", bound=Scan)


def scan_in_threads(
    make: Callable[[], AnyScan],
    store: EmbeddingStore,
    plan: MemoryPlan,
    queries: int,
    rows: int,
    own: int,
    label: str,
) -> list[AnyScan]:
    """Add all passages to what `make` returns, called once a thread.

    Threads share the passages, and each multiplies alone: products of few dims are over before threads of the linear
    algebra library have begun. `rows`: passages of a product; `own`: bytes that a thread has for itself, of the memory that
    exact scoring takes later.
    """
    count, dim = store.count, store.spec.size.dim
    all_threads = torch.get_num_threads()
    threads = min(all_threads, queries * count * dim // _PRODUCTS_PER_THREAD, plan.gathered * dim * 6 // own)
    threads = max(1, threads)
    read = max(1, min(plan.block // (4 * threads), _READ // dim, count // (4 * threads)) // rows) * rows
    ranges = list(store.ranges(read))

    def scan(taken: Iterator[tuple[int, int]]) -> AnyScan:
        part = make()
        with torch.inference_mode():
            for bounds in taken:
                part.add(bounds[0], store.block(*bounds))
        return part

    with torch_threads(all_threads if threads == 1 else 1):
        return share(progress(ranges, len(ranges), "blocks", label) if label else ranges, threads, scan)
