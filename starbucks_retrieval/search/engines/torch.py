"""Candidates from torch: matrix products in bfloat16 or float32, on a CPU or a GPU, each with its error bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.cli import progress
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import FEW, CandidateEngine, CandidateGenerator, EngineOptions, MemoryPlan
from starbucks_retrieval.search.engines.tensor_blocks import Converter, tensor_blocks
from starbucks_retrieval.search.engines.top_rows import TopRows, merged
from starbucks_retrieval.search.loops import compiled_loops
from starbucks_retrieval.search.scores import single_error
from starbucks_retrieval.search.threads import share
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.dtypes import to_float32

_ROUNDING = 2.0**-8  # of bfloat16: rounding errs by no more than this share
_LARGEST = 1e38  # numbers near float32's limit could round to infinity in bfloat16
_LONG_VECTOR, _LONG_WITH_AMX = 512, 256  # dimensions from which bf16 is faster
_BLOCK_ROWS = {"cpu": 2**13, "cuda": 2**17}  # rows per product, memory permitting
_CACHED_SCORES = 2**20  # of a product on a CPU: they stay in its cache until they are compared
_READ = 2**22  # numbers to read at once: each time, a shard is opened and mapped
_PRODUCTS_PER_THREAD = 10**8  # starting a thread takes as long as a fraction of them
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
        left = torch.tensor(queries).to(self.device, torch.bfloat16 if bf16 else torch.float32)
        scan = _scan_on_cpu if self.device.type == "cpu" else _scan_on_gpu
        with torch.inference_mode(), float32_products():
            floor = _sampled_floor(left, store, plan) if self.device.type == "cpu" else None
            scores, found, largest_move = scan(left, store, plan, floor, label)
            short = np.flatnonzero(np.isneginf(scores[:, -1]))  # the sample promised too much
            if len(short):
                scores[short], found[short], _ = scan(left[short], store, plan, None, label)
        if not bf16:
            return _needed(scores, found, depth, single_error(queries, store.largest_norm), 0.0)
        moved_queries = np.sqrt(np.square(queries.astype(np.float64) - left.double().cpu().numpy()).sum(axis=1))
        error = _bf16_error(queries, moved_queries, largest_move, store.largest_norm)
        return _needed(scores, found, depth, error, _rounding_of_products(left))


_Scanned = tuple[np.ndarray, np.ndarray, float]


def _scan_on_gpu(
    queries: Tensor, store: EmbeddingStore, plan: MemoryPlan, floor: Tensor | None, label: str
) -> _Scanned:
    """As `_scan_on_cpu`."""
    product = _Product(queries, _rows_at_once(queries, store, plan))
    kept, largest_move = TopRows(len(queries), plan.candidates, queries.device, floor), 0.0
    for start, block, moved in tensor_blocks(store, product.rows, queries.device, queries.dtype, label):
        kept.add(start, product(block))
        largest_move = max(largest_move, moved)
    return *merged([kept]), largest_move


def _scan_on_cpu(
    queries: Tensor, store: EmbeddingStore, plan: MemoryPlan, floor: Tensor | None, label: str
) -> _Scanned:
    """Return scores, descending, and rows of the best candidates, and a bound on how far a passage was moved by rounding.

    Threads share the passages, and each multiplies alone: products of few dims are over before threads of the linear
    algebra library have begun.
    """
    count, dim = store.count, store.spec.size.dim
    loops = compiled_loops(len(queries) * count)
    rows, all_threads = _rows_at_once(queries, store, plan), torch.get_num_threads()
    # Each thread has a block of vectors, of scores, and lists of its own, in the memory that exact scoring takes later.
    own = 4 * rows * (dim + len(queries)) + 12 * len(queries) * (3 * plan.candidates + rows)
    work = len(queries) * count * dim
    threads = max(1, min(all_threads, work // _PRODUCTS_PER_THREAD, plan.gathered * dim * 6 // own))
    read = max(1, min(plan.block // (4 * threads), _READ // dim, count // (4 * threads)) // rows) * rows
    ranges = list(store.ranges(read))

    def scan(taken: Iterator[tuple[int, int]]) -> tuple[TopRows, float]:
        if threads > 1:
            torch.set_num_threads(1)
        product, convert = _Product(queries, rows), Converter(store, rows, queries.dtype, loops)
        kept, largest_move = TopRows(len(queries), plan.candidates, queries.device, floor, loops, rows), 0.0
        with torch.inference_mode():
            for bounds in taken:
                for start, block, moved in convert(bounds[0], store.block(*bounds)):
                    kept.add(start, product(block))
                    largest_move = max(largest_move, moved)
        return kept, largest_move

    try:
        parts = share(progress(ranges, len(ranges), "blocks", label) if label else ranges, threads, scan)
    finally:
        torch.set_num_threads(all_threads)  # new threads start with the last number that was set
    return *merged([kept for kept, _ in parts]), max(largest_move for _, largest_move in parts)


def _rows_at_once(queries: Tensor, store: EmbeddingStore, plan: MemoryPlan) -> int:
    """Passages per product."""
    dim = store.spec.size.dim
    rows = min(_BLOCK_ROWS[queries.device.type], plan.block * dim * 3 // (12 * dim + 16 * len(queries)))
    if queries.device.type == "cpu":
        rows = min(rows, max(512, _CACHED_SCORES // len(queries)))
    return min(max(256, rows), store.count)


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
        self.queries, self.rows = queries, rows
        self.wide = queries.dtype == torch.bfloat16 and queries.device.type == "cuda"
        dtype = torch.float32 if self.wide else queries.dtype
        self.buffer = torch.empty(len(queries) * rows, dtype=dtype, device=queries.device)

    def __call__(self, vectors: Tensor) -> Tensor:
        out = self.buffer[: len(self.queries) * len(vectors)].view(len(self.queries), len(vectors))
        if self.wide:
            return torch.mm(self.queries, vectors.T, out_dtype=torch.float32, out=out)
        return torch.mm(self.queries, vectors.T, out=out)


def _rounding_of_products(queries: Tensor) -> float:
    """By which share of itself a product of bfloat16 vectors is rounded: torch sums in float32, on CPUs rounds the sum."""
    return _ROUNDING / (1 - _ROUNDING) if queries.device.type == "cpu" else 0.0


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
    # Rounding leaves more candidates to score exactly; only long vectors save more than that (bench/search_exact.py).
    return bool(
        (capabilities.get("amx_bf16") and dim >= _LONG_WITH_AMX)
        or (capabilities.get("avx512_bf16") and dim >= _LONG_VECTOR)
    )
