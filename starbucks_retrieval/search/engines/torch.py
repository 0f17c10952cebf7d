"""Candidates from torch: matrix products in bfloat16 or float32, on a CPU or a GPU, each with its error bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import (
    FEW,
    CandidateEngine,
    CandidateGenerator,
    EngineOptions,
    MemoryPlan,
    blocks_with_progress,
)
from starbucks_retrieval.search.engines.top_rows import TopRows
from starbucks_retrieval.search.scores import single_error
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.dtypes import to_float32

_ROUNDING = 2.0**-8  # of bfloat16: rounding errs by no more than this share
_LARGEST = 1e38  # numbers near float32's limit could round to infinity in bfloat16
_LONG_VECTOR = 512  # dimensions
_BLOCK_ROWS = {"cpu": 2**12, "cuda": 2**17}  # rows per product, memory permitting
_CACHED_SCORES = 2**19  # of a product on a CPU: they stay in its cache until they are compared
_READ = 2**22  # numbers to read at once: each time, shards are opened and mapped
_EXPECTED, _SAMPLED, _RUN = 32, 2**16, 32  # candidates in a sample; its passages at most, in runs of consecutive ones


class TorchEngine(CandidateEngine):
    """`--engine torch`: a GPU where there is one, unless `--device` says otherwise."""

    def candidate_generator(self, options: EngineOptions, dim: int | None = None) -> CandidateGenerator:
        """Return a generator; dtype `auto` is bf16 where that is faster. Raises UserError for a device that is absent."""
        if options.dtype not in ("auto", "fp32", "bf16"):
            raise UserError(f"--dtype {options.dtype} is not one for searching", "use fp32, bf16 or auto")
        device = resolve_device(options.device)
        if device.type not in _BLOCK_ROWS:
            raise UserError(f"search runs on cpu or cuda, not on {options.device}", "use --device cpu")
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        if options.dtype == "bf16":
            from starbucks_retrieval.models.precision import warn_if_bf16_is_slow  # imports more than a search needs

            warn_if_bf16_is_slow(device, "take --dtype fp32")
        bf16 = {"fp32": False, "bf16": True, "auto": _bf16_is_fast(device, dim or 0)}[options.dtype]
        return TorchCandidateGenerator(device, bf16)


class TorchCandidateGenerator:
    """Generates the rows that may be among the best by products in bfloat16 (`bf16`) or float32."""

    def __init__(self, device: torch.device, bf16: bool) -> None:
        self.device = device
        self.bf16 = bf16
        self.overfetch = 2 if bf16 else 1  # coarser scores: more candidates are kept and scored exactly

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scan the store once, as `CandidateGenerator.generate` says."""
        bf16 = self.bf16 and max(float(np.abs(queries).max(initial=0)), store.largest_norm) < _LARGEST
        dim = store.spec.size.dim
        left = torch.tensor(queries).to(self.device, torch.bfloat16 if bf16 else torch.float32)
        rows = max(256, min(_BLOCK_ROWS[self.device.type], plan.block * dim * 3 // (12 * dim + 16 * len(queries))))
        if self.device.type == "cpu":
            rows = min(rows, max(512, _CACHED_SCORES // len(queries)))
        rows, count = min(rows, store.count), plan.candidates
        read = max(1, min(plan.block // 4, _READ // dim) // rows) * rows
        product = _Product(left, rows)
        largest_move = 0.0  # no passage moved by more than this when it was rounded

        def scan(product: _Product, floor: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
            nonlocal largest_move
            kept = TopRows(len(product.queries), count, self.device, floor)
            for start, block, moved in tensor_blocks(store, rows, self.device, left.dtype, label, read):
                kept.add(start, product(block))
                largest_move = max(largest_move, moved)
            return kept.finish()

        with torch.inference_mode(), float32_products():
            floor = _sampled_floor(left, store, plan) if self.device.type == "cpu" else None
            scores, found = scan(product, floor)
            short = np.flatnonzero(np.isneginf(scores[:, -1]))  # the sample promised too much
            if len(short):
                scores[short], found[short] = scan(_Product(left[short], rows), None)
        if not bf16:
            return _needed(scores, found, depth, single_error(queries, store.largest_norm), 0.0)
        moved_queries = np.sqrt(np.square(queries.astype(np.float64) - left.double().cpu().numpy()).sum(axis=1))
        error = _bf16_error(queries, moved_queries, largest_move, store.largest_norm)
        return _needed(scores, found, depth, error, product.share)


def _sampled_floor(queries: Tensor, store: EmbeddingStore, plan: MemoryPlan) -> Tensor | None:
    """Return scores that probably, not certainly, `plan.candidates` passages exceed: [queries, 1].

    A sample of the store holds about `expected` of a query's candidates, give or take its root; four of these deviations
    lower are the scores. None where the lists are so short that scoring a sample costs more than it saves.
    """
    sampled = min(_EXPECTED * store.count // plan.candidates, plan.block // 4, _SAMPLED) // _RUN * _RUN
    expected = plan.candidates * sampled / store.count
    rank = int(expected + 4 * expected**0.5 + 4)
    if len(queries) < FEW or 16 * sampled > store.count or expected < _EXPECTED / 8 or 4 * rank > sampled:
        return None
    starts = np.linspace(0, store.count - _RUN, sampled // _RUN).astype(np.int64)
    vectors = to_float32(store.vectors((starts[:, None] + np.arange(_RUN)).ravel()))
    sample = torch.from_numpy(vectors).to(queries.dtype)
    scores = (part @ sample.T for part in queries.split(max(1, _CACHED_SCORES // sampled)))
    ranked = [np.partition(part.float().numpy(), -rank, axis=1)[:, -rank] for part in scores]
    floor = torch.from_numpy(np.concatenate(ranked)).to(queries.dtype).unsqueeze(1)
    return torch.nextafter(floor, torch.full_like(floor, -torch.inf)).float()  # equal scores pass


class _Product:
    """Scores [queries, rows] of up to `rows` vectors, written to one buffer."""

    def __init__(self, queries: Tensor, rows: int) -> None:
        self.queries = queries
        bf16 = queries.dtype == torch.bfloat16
        # torch sums in float32 everywhere; on a CPU it rounds the sum to bfloat16 again.
        self.share = _ROUNDING / (1 - _ROUNDING) if bf16 and queries.device.type == "cpu" else 0.0
        self.wide = bf16 and queries.device.type == "cuda"
        dtype = torch.float32 if self.wide else queries.dtype
        self.buffer = torch.empty(len(queries) * rows, dtype=dtype, device=queries.device)

    def __call__(self, vectors: Tensor) -> Tensor:
        out = self.buffer[: len(self.queries) * len(vectors)].view(len(self.queries), len(vectors))
        if self.wide:
            return torch.mm(self.queries, vectors.T, out_dtype=torch.float32, out=out)
        return torch.mm(self.queries, vectors.T, out=out)


def _needed(
    scores: np.ndarray, rows: np.ndarray, depth: int, error: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that may be among the `depth` best [queries, any], and a bound on all others [queries].

    `scores`, `rows`: [queries, candidates], descending. An exact score differs from the one given by at most `share` of
    that and `error` [queries].
    """
    scores = scores.astype(np.float64)
    highest = scores + share * np.abs(scores) + error[:, None]
    last = scores[:, depth - 1]
    reached = last - share * np.abs(last) - error  # `depth` passages have at least this
    width = max(depth, int((highest >= reached[:, None]).sum(axis=1).max()))
    return rows[:, :width], highest[:, min(width, scores.shape[1] - 1)]


def _bf16_error(queries: np.ndarray, moved: np.ndarray, largest_move: float, largest_norm: float) -> np.ndarray:
    """Return a bound on the error of products of vectors rounded to bfloat16 and summed in float32: [queries].

    |q.p - q'.p'| <= |q - q'| |p| + |q'| |p - p'|, where q' and p' are the rounded vectors. `moved`: |q - q'| of each
    query; `largest_move`: the largest |p - p'|. The units that multiply bfloat16 truncate sums instead of rounding them, and
    flush the smallest numbers to zero: four times the bound of single precision, and a term for the latter.
    """
    norms = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1)) + moved
    tiny = queries.shape[1] * float(np.finfo(np.float32).tiny) * (1 + norms + largest_norm)
    rounding = (moved * largest_norm + norms * largest_move) * (1 + 1e-9)
    return rounding + 4 * (1 + 2 * _ROUNDING) ** 2 * single_error(queries, largest_norm) + tiny


@contextmanager
def float32_products() -> Iterator[None]:
    """Compute float32 products in float32 inside this context, as the error bound needs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _bf16_is_fast(device: torch.device, dim: int) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    capabilities = torch.cpu.get_capabilities()
    # Without AMX the products save less than rounding costs, unless vectors are long (bench/search_exact.py).
    return bool(capabilities.get("amx_bf16") or (capabilities.get("avx512_bf16") and dim >= _LONG_VECTOR))


_CACHED = 2**20  # bytes of float32 that stay in the CPU cache between conversion, rounding and comparison

TensorBlock = tuple[int, Tensor, float]


def tensor_blocks(
    store: EmbeddingStore, rows: int, device: torch.device, dtype: torch.dtype, label: str, read: int = 0
) -> Iterator[TensorBlock]:
    """Iterate over all vectors of a store, in order.

    Args:
        store: The passages.
        rows: Vectors per block.
        device: Where the tensors are needed.
        dtype: float32 or bfloat16.
        label: Shown with the progress; empty for none.
        read: Vectors to read from the store at once, on a CPU: a multiple of `rows`; 0: `rows`.

    Returns:
        An iterator over (first row, tensor [rows, dim], distance): no vector is farther than `distance` from the stored
        one. A tensor is overwritten by the next.
    """
    if device.type == "cuda":
        yield from _on_gpu(store, rows, device, dtype, label)
        return
    dim = store.spec.size.dim
    chunk = max(16, _CACHED // (4 * dim))
    # torch converts in a tenth of the time that NumPy takes, but refuses read-only memory, such as a mapped file.
    copy = torch.from_numpy(np.empty((chunk, dim), store.block_dtype))
    single, vectors = torch.empty(chunk, dim), torch.empty(rows, dim, dtype=dtype)
    for first, many in blocks_with_progress(store, read or rows, store.block_dtype, label):
        for start in range(0, len(many), rows):
            block, distance = many[start : start + rows], 0.0
            for low in range(0, len(block), chunk):
                part = block[low : low + chunk]
                stored, before, near = copy[: len(part)], single[: len(part)], vectors[low : low + len(part)]
                stored.numpy()[:] = part
                if dtype == torch.float32:
                    near.copy_(stored)
                else:
                    before.copy_(stored)
                    distance = max(distance, _round(before, near))
            yield first + start, vectors[: len(block)], distance


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
    return float(torch.linalg.vector_norm(single, dim=1).max()) * 1.001
