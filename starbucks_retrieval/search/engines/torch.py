"""Candidates from torch: matrix products in bfloat16 or float32, on a CPU or a GPU, each with its error bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import (
    CandidateEngine,
    CandidateGenerator,
    Candidates,
    EngineOptions,
    MemoryPlan,
    wanted_candidates,
)
from starbucks_retrieval.search.engines.rounding import (
    LARGEST,
    ErrorBound,
    bf16_bound,
    largest_bf16_move,
    smallest_that_matters,
)
from starbucks_retrieval.search.engines.sample import sampled_scores
from starbucks_retrieval.search.engines.scan_threads import scan_in_threads
from starbucks_retrieval.search.engines.scored_rows import ScoredRows, converted_at_once, list_width, ranked_lists
from starbucks_retrieval.search.engines.tensor_blocks import Converter, tensor_blocks
from starbucks_retrieval.search.engines.top_rows import TopRows, merged
from starbucks_retrieval.search.loops import compiled_loops
from starbucks_retrieval.search.scores import double_error, single_error
from starbucks_retrieval.store import EmbeddingStore

_LONG_VECTOR, _LONG_WITH_AMX = 512, 256  # dimensions from which bf16 is faster
_BLOCK_ROWS = {"cpu": 2**13, "cuda": 2**17}  # rows per product, memory permitting
_CACHED = 2**22  # bytes of the scores of a product on a CPU: they stay in its cache until they are compared


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
        if options.dtype == "auto":
            return TorchCandidateGenerator(device, *_bf16_is_fast(device, dim or 0))
        return TorchCandidateGenerator(device, options.dtype == "bf16")


class TorchCandidateGenerator:
    """Generates the rows that may be among the best by products in bfloat16 (`bf16`) or float32.

    Args:
        device: Where to multiply.
        bf16: Whether to multiply in bfloat16.
        bf16_in_loops: The same where loops are compiled; None: as `bf16`.
    """

    def __init__(self, device: torch.device, bf16: bool, bf16_in_loops: bool | None = None) -> None:
        self.device = device
        self.bf16 = bf16
        self.bf16_in_loops = bf16 if bf16_in_loops is None else bf16_in_loops
        self.overfetch = 2 if bf16 else 1  # coarser scores: more candidates are kept and scored exactly

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> Candidates:
        """Scan the store, as `CandidateGenerator.generate` says."""
        longest, loops = float(np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1)).max(initial=0)), None
        if self.device.type == "cpu" and longest * store.largest_norm < LARGEST:  # no score is infinite
            loops = compiled_loops(len(queries) * store.count)
        bf16 = (self.bf16 if loops is None else self.bf16_in_loops) and max(longest, store.largest_norm) < LARGEST
        near = torch.tensor(queries).to(self.device, torch.bfloat16 if bf16 else torch.float32)
        with torch.inference_mode(), float32_products():
            if loops is not None:
                return _generate_scored(queries, near, store, plan, depth, loops, label)
            return self._generate(queries, near, store, plan, depth, label)

    def _generate(
        self, queries: np.ndarray, near: Tensor, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> Candidates:
        scan = _scan_on_cpu if self.device.type == "cpu" else _scan_on_gpu
        sampled = sampled_scores(near, store, plan, plan.candidates) if self.device.type == "cpu" else None
        floor = None if sampled is None else torch.from_numpy(sampled.low).unsqueeze(1)
        scores, found, largest_move = scan(near, store, plan, floor, label)
        short = np.flatnonzero(np.isneginf(scores[:, -1]))  # the sample promised too much
        if len(short):
            scores[short], found[short], _ = scan(near[short], store, plan, None, label)
        return _needed(scores, found, depth, _error_bound(queries, near, store, largest_move))


def _error_bound(queries: np.ndarray, near: Tensor, store: EmbeddingStore, largest_move: float) -> ErrorBound:
    if near.dtype == torch.bfloat16:
        return bf16_bound(queries, near, largest_move, store.largest_norm)
    return ErrorBound(0.0, single_error(queries, store.largest_norm))


def _generate_scored(
    queries: np.ndarray,
    near: Tensor,
    store: EmbeddingStore,
    plan: MemoryPlan,
    depth: int,
    loops: ModuleType,
    label: str,
) -> Candidates:
    """Candidates with exact scores, found in compiled loops on a CPU."""
    dim = store.spec.size.dim
    bound = _error_bound(queries, near, store, largest_bf16_move(store.largest_norm, dim))
    errors = double_error(queries, store.largest_norm)
    count = min(wanted_candidates(depth), store.count)
    floors = np.full(len(queries), -np.inf, np.float32)
    sampled = sampled_scores(near, store, plan, count, loops)
    if sampled is not None:  # lower where scores are so dense that their errors might leave the result open
        floors = np.minimum(sampled.low, bound.floors(bound.lowest(sampled.likely)))

    def scan(some: np.ndarray, floors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = _rows_at_once(near[some], store, plan)
        own = 4 * (converted_at_once(rows, dim) * dim + rows * len(some)) + 12 * len(some) * list_width(count)
        parts = scan_in_threads(
            lambda: ScoredRows(queries[some], near[some], floors, bound[some], errors[some], depth, count, rows, loops),
            *(store, plan, len(some), rows, own, label),
        )
        return *ranked_lists(parts, torch.get_num_threads()), np.max([part.highest_outside() for part in parts], axis=0)

    rows, scores, outside = scan(np.arange(len(queries)), floors)
    least = smallest_that_matters(scores[:, depth - 1], errors)
    doubtful = np.flatnonzero(~(outside < least))  # the sample promised too much
    if len(doubtful):
        again_rows, again_scores, outside[doubtful] = scan(doubtful, bound[doubtful].floors(least[doubtful]))
        rows, scores = _replaced(rows, doubtful, again_rows, 0), _replaced(scores, doubtful, again_scores, -np.inf)
    return Candidates(rows, outside, scores)


def _replaced(lines: np.ndarray, numbers: np.ndarray, others: np.ndarray, filler: float) -> np.ndarray:
    """Return lines of which those with some numbers are others; shorter ones are filled up."""
    width = max(lines.shape[1], others.shape[1])
    lines, others = (
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=filler) for part in (lines, others)
    )
    lines[numbers] = others
    return lines


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
    """Return scores, descending, and rows of the best candidates, and a bound on how far a passage was moved by rounding."""
    rows = _rows_at_once(queries, store, plan)
    own = 4 * rows * (store.spec.size.dim + len(queries)) + 12 * len(queries) * 3 * plan.candidates
    parts = scan_in_threads(
        lambda: _ApproximateScan(queries, store, rows, plan.candidates, floor),
        *(store, plan, len(queries), rows, own, label),
    )
    return *merged([part.kept for part in parts]), max(part.largest_move for part in parts)


class _ApproximateScan:
    """Keeps the best of what it is given, by approximate scores."""

    def __init__(
        self, queries: Tensor, store: EmbeddingStore, rows: int, candidates: int, floor: Tensor | None
    ) -> None:
        self.product, self.convert = _Product(queries, rows), Converter(store, rows, queries.dtype)
        self.kept, self.largest_move = TopRows(len(queries), candidates, queries.device, floor), 0.0

    def add(self, first: int, stored: np.ndarray) -> None:
        for start, block, moved in self.convert(first, stored):
            self.kept.add(start, self.product(block))
            self.largest_move = max(self.largest_move, moved)


def _rows_at_once(queries: Tensor, store: EmbeddingStore, plan: MemoryPlan) -> int:
    """Passages per product."""
    dim = store.spec.size.dim
    rows = min(_BLOCK_ROWS[queries.device.type], plan.block * dim * 3 // (12 * dim + 16 * len(queries)))
    if queries.device.type == "cpu":
        rows = min(rows, max(512, _CACHED // (queries.element_size() * len(queries))))
    return min(max(256, rows), store.count)


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


def _needed(scores: np.ndarray, rows: np.ndarray, depth: int, bound: ErrorBound) -> Candidates:
    """Return the candidates that may be among the `depth` best. `scores`, `rows`: [queries, candidates], descending."""
    highest = bound.highest(scores)
    reached = bound.lowest(scores[:, depth - 1])  # `depth` passages have at least this
    width = max(depth, int((highest >= reached[:, None]).sum(axis=1).max()))
    return Candidates(rows[:, :width], highest[:, min(width, scores.shape[1] - 1)])


@contextmanager
def float32_products() -> Iterator[None]:
    """Compute float32 products in float32 inside this context, as the error bound needs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _bf16_is_fast(device: torch.device, dim: int) -> tuple[bool, bool]:
    """Whether bf16 is faster than fp32 without compiled loops, and with them (bench/README.md, Exact search)."""
    if device.type == "cuda":
        return (torch.cuda.is_bf16_supported(False),) * 2
    capabilities = torch.cpu.get_capabilities()
    fast, amx = bool(capabilities.get("avx512_bf16")) and dim >= _LONG_VECTOR, bool(capabilities.get("amx_bf16"))
    # Without loops, more candidates are scored exactly; only long vectors save more than that.
    return fast or (amx and dim >= _LONG_WITH_AMX), fast or amx
