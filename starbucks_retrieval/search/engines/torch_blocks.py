"""Stored vectors as tensors on a device, block by block, with a bound on their rounding error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.search.engines.base import blocks_with_progress
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
    blocks = blocks_with_progress(store, rows, store.dtype, label)
    dim = store.spec.size.dim
    if device.type == "cuda":
        yield from _on_gpu(blocks, rows, dim, store.dtype, device, dtype)
    elif dtype == torch.float32:
        convert = _ToFloat32(dim, store.dtype)
        single = torch.empty(rows, dim)
        for start, block in blocks:
            for low in range(0, len(block), convert.chunk):
                convert(block[low : low + convert.chunk], single[low : low + convert.chunk])
            yield start, single[: len(block)], 0.0
    else:
        yield from _rounded_on_cpu(blocks, rows, _ToFloat32(dim, store.dtype), dtype)


class _ToFloat32:
    """Converts stored vectors to float32 by torch, `chunk` rows at a time: a tenth of the time that NumPy takes."""

    def __init__(self, dim: int, stored: np.dtype) -> None:
        self.dim = dim
        self.chunk = max(16, _CACHED // (4 * dim))
        # torch refuses read-only memory, such as a mapped file.
        self._copy = torch.from_numpy(np.empty((self.chunk, dim), stored))

    def __call__(self, vectors: np.ndarray, out: Tensor) -> None:
        """Write `vectors` [up to chunk, dim] to the first rows of `out`."""
        copy = self._copy[: len(vectors)]
        copy.numpy()[:] = vectors
        out[: len(vectors)].copy_(copy)


def _rounded_on_cpu(
    blocks: Iterator[tuple[int, np.ndarray]], rows: int, convert: _ToFloat32, dtype: torch.dtype
) -> Iterator[TensorBlock]:
    single, rounded = torch.empty(convert.chunk, convert.dim), torch.empty(rows, convert.dim, dtype=dtype)
    for start, block in blocks:
        distance = 0.0
        for low in range(0, len(block), convert.chunk):
            vectors = block[low : low + convert.chunk]
            convert(vectors, single)
            near, before = rounded[low : low + len(vectors)], single[: len(vectors)]
            distance = max(distance, _round(before, near))
        yield start, rounded[: len(block)], distance


def _on_gpu(
    blocks: Iterator[tuple[int, np.ndarray]],
    rows: int,
    dim: int,
    stored: np.dtype,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[TensorBlock]:
    """Copy the next block while the caller works on this one."""
    kind = torch.from_numpy(np.empty(0, stored)).dtype
    pinned = [torch.empty(rows, dim, dtype=kind, pin_memory=True) for _ in range(2)]
    pending: tuple[int, Tensor] | None = None
    for number, (start, block) in enumerate(blocks):
        # The block that this buffer held two rounds ago has arrived: its scores have been read back.
        buffer = pinned[number % 2][: len(block)]
        buffer.numpy()[:] = block
        copied = start, buffer.to(device, non_blocking=True)
        if pending is not None:
            yield _to_dtype(*pending, dtype)
        pending = copied
    if pending is not None:
        yield _to_dtype(*pending, dtype)


def _to_dtype(start: int, vectors: Tensor, dtype: torch.dtype) -> TensorBlock:
    single = vectors.float()
    if dtype == torch.float32:
        return start, single, 0.0
    near = torch.empty_like(single, dtype=dtype)
    return start, near, _round(single, near)


def _round(single: Tensor, near: Tensor) -> float:
    """Round `single`, which is overwritten, into `near`; return a bound on the distance between their rows."""
    near.copy_(single)
    single -= near  # exact: the rounding error is a float32
    return float(torch.linalg.vector_norm(single, dim=1).max()) * 1.001
