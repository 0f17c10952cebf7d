"""Stored vectors as tensors on a device, a few at a time, and how far rounding moved them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines.exact import shown_blocks
from starbucks_retrieval.store import EmbeddingStore

_CACHED = 2**20  # bytes of single precision that stay in the cache between reading, rounding and comparing

Piece = tuple[int, Tensor, float]


def pieces(store: EmbeddingStore, rows: int, device: torch.device, dtype: torch.dtype, label: str) -> Iterator[Piece]:
    """All vectors in order, `rows` at a time: (first row, [rows, dim] of `dtype` on `device`, distance).

    No vector lies farther from its stored one than `distance`. A tensor is good until the next is asked for.
    """
    blocks = shown_blocks(store, rows, store.dtype, label)
    dim = store.spec.size.dim
    if device.type == "cuda":
        yield from _on_gpu(blocks, rows, dim, store.dtype, device, dtype)
    elif dtype == torch.float32:
        wide = _Widener(dim, store.dtype)
        single = torch.empty(rows, dim)
        for start, block in blocks:
            for low in range(0, len(block), wide.few):
                wide(block[low : low + wide.few], single[low : low + wide.few])
            yield start, single[: len(block)], 0.0
    else:
        yield from _rounded_on_cpu(blocks, rows, _Widener(dim, store.dtype), dtype)


class _Widener:
    """Stored vectors to single precision, `few` at a time, by torch: a tenth of the time that NumPy takes."""

    def __init__(self, dim: int, stored: np.dtype) -> None:
        self.dim = dim
        self.few = max(16, _CACHED // (4 * dim))
        # Torch takes no memory that is read-only, as a mapped file is.
        self._copy = torch.from_numpy(np.empty((self.few, dim), stored))

    def __call__(self, some: np.ndarray, out: Tensor) -> None:
        """Write `some` [up to few, dim] to the first rows of `out`."""
        copy = self._copy[: len(some)]
        copy.numpy()[:] = some
        out[: len(some)].copy_(copy)


def _rounded_on_cpu(
    blocks: Iterator[tuple[int, np.ndarray]], rows: int, wide: _Widener, dtype: torch.dtype
) -> Iterator[Piece]:
    single, rounded = torch.empty(wide.few, wide.dim), torch.empty(rows, wide.dim, dtype=dtype)
    for start, block in blocks:
        farthest = 0.0
        for low in range(0, len(block), wide.few):
            some = block[low : low + wide.few]
            wide(some, single)
            near, before = rounded[low : low + len(some)], single[: len(some)]
            farthest = max(farthest, _round(before, near))
        yield start, rounded[: len(block)], farthest


def _on_gpu(
    blocks: Iterator[tuple[int, np.ndarray]],
    rows: int,
    dim: int,
    stored: np.dtype,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[Piece]:
    """The next vectors travel while these are worked on."""
    kind = torch.from_numpy(np.empty(0, stored)).dtype
    pinned = [torch.empty(rows, dim, dtype=kind, pin_memory=True) for _ in range(2)]
    waiting: tuple[int, Tensor] | None = None
    for number, (start, block) in enumerate(blocks):
        # What this buffer held two rounds ago has arrived: scores made of it have been read back.
        buffer = pinned[number % 2][: len(block)]
        buffer.numpy()[:] = block
        arriving = start, buffer.to(device, non_blocking=True)
        if waiting is not None:
            yield _converted(*waiting, dtype)
        waiting = arriving
    if waiting is not None:
        yield _converted(*waiting, dtype)


def _converted(start: int, vectors: Tensor, dtype: torch.dtype) -> Piece:
    single = vectors.float()
    if dtype == torch.float32:
        return start, single, 0.0
    near = torch.empty_like(single, dtype=dtype)
    return start, near, _round(single, near)


def _round(single: Tensor, near: Tensor) -> float:
    """Write `single`, which is spent afterwards, to `near`; the largest distance between their rows, or a bit more."""
    near.copy_(single)
    single -= near  # exact: what rounding took off fits in single precision
    return float(torch.linalg.vector_norm(single, dim=1).max()) * 1.001
