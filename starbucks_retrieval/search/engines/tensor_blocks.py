"""Vectors of a store as tensors, converted for products of matrices: on a CPU in its cache, on a GPU while it computes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines import blocks_with_progress
from starbucks_retrieval.store import EmbeddingStore

_CACHED = 2**20  # bytes of float32 that stay in the CPU cache between conversion, rounding and comparison

TensorBlock = tuple[int, Tensor, float]


def tensor_blocks(
    store: EmbeddingStore, rows: int, device: torch.device, dtype: torch.dtype, label: str
) -> Iterator[TensorBlock]:
    """Iterate over all vectors of a store, in order.

    Args:
        store: The passages.
        rows: Vectors per block.
        device: Where the tensors are needed.
        dtype: float32 or bfloat16.
        label: Shown with the progress; empty for none.

    Returns:
        An iterator over (first row, tensor [rows, dim], distance): no vector is farther than `distance` from the stored
        one. A tensor is overwritten by the next.
    """
    if device.type == "cuda":
        yield from _on_gpu(store, rows, device, dtype, label)
        return
    convert = Converter(store, rows, dtype)
    for start, block in blocks_with_progress(store, rows, store.block_dtype, label):
        yield from convert(start, block)


class Converter:
    """Converts vectors to tensors on a CPU, in buffers of its own.

    Args:
        store: Where the vectors come from.
        rows: Vectors per block.
        dtype: float32 or bfloat16.
    """

    def __init__(self, store: EmbeddingStore, rows: int, dtype: torch.dtype) -> None:
        dim = store.spec.size.dim
        chunk = max(16, _CACHED // (4 * dim))
        # torch converts in a tenth of the time that NumPy takes, but refuses read-only memory, such as a mapped file.
        self.stored = torch.from_numpy(np.empty((chunk, dim), store.block_dtype))
        self.single, self.vectors = torch.empty(chunk, dim), torch.empty(rows, dim, dtype=dtype)

    def __call__(self, first: int, many: np.ndarray) -> Iterator[TensorBlock]:
        """Yield blocks, as `tensor_blocks` does, of consecutive rows from `first`: [any, dim]."""
        for start in range(0, len(many), len(self.vectors)):
            block = many[start : start + len(self.vectors)]
            converted = self.vectors[: len(block)]
            yield first + start, converted, self._convert(block, converted)

    def _convert(self, block: np.ndarray, converted: Tensor) -> float:
        """Convert vectors, and return a bound on the distance that any of them moves."""
        distance = 0.0
        for low in range(0, len(block), len(self.stored)):
            part = block[low : low + len(self.stored)]
            stored, near = self.stored[: len(part)], converted[low : low + len(part)]
            stored.numpy()[:] = part
            if near.dtype == torch.float32:
                near.copy_(stored)
            else:
                distance = max(distance, _round(self.single[: len(part)].copy_(stored), near))
        return distance


def _on_gpu(
    store: EmbeddingStore, rows: int, device: torch.device, dtype: torch.dtype, label: str
) -> Iterator[TensorBlock]:
    """Copy the next block while the caller works on this one."""
    kind = torch.from_numpy(np.empty(0, store.block_dtype)).dtype
    pinned = [torch.empty(rows, store.spec.size.dim, dtype=kind, pin_memory=True) for _ in range(2)]
    pending: tuple[int, Tensor] | None = None

    def converted(start: int, vectors: Tensor) -> TensorBlock:
        single = vectors.float()
        if dtype == torch.float32:
            return start, single, 0.0
        near = torch.empty_like(single, dtype=dtype)
        return start, near, _round(single, near)

    for number, (start, block) in enumerate(blocks_with_progress(store, rows, store.block_dtype, label)):
        # The block that this buffer held two rounds ago has arrived: its scores have been read back.
        buffer = pinned[number % 2][: len(block)]
        buffer.numpy()[:] = block
        copied = start, buffer.to(device, non_blocking=True)
        if pending is not None:
            yield converted(*pending)
        pending = copied
    if pending is not None:
        yield converted(*pending)


def _round(single: Tensor, near: Tensor) -> float:
    """Round `single`, which is overwritten, into `near`; return a bound on the distance between their rows."""
    near.copy_(single)
    single -= near  # exact: the rounding error is a float32
    longest = float(torch.linalg.vector_norm(single, dim=1).max())
    return longest * 1.001 + single.shape[1] ** 0.5 * 2.0**-63  # a smaller number's square may count as zero
