"""Proposals by torch: matrix products in bfloat16 or float32, on a CPU or a GPU, with an error bound of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.torch_slices import pieces
from starbucks_retrieval.search.plan import Plan
from starbucks_retrieval.search.scores import single_error
from starbucks_retrieval.store import EmbeddingStore

_UNIT = 2.0**-8  # of bfloat16: rounding errs by no more than this share
_LARGEST = 1e38  # numbers near float32's limit could round to infinity in bfloat16
_LONG = 512  # numbers of a vector
_PIECE = {"cpu": 2**12, "cuda": 2**17}  # rows per product, memory permitting


def torch_candidate_generator(
    device: str | None = None, dtype: str = "auto", threads: int | None = None, dim: int | None = None
) -> TorchCandidateGenerator:
    """A proposer for `exact_search` that multiplies by torch.

    `device`: cpu, cuda or cuda:1; a GPU when there is one if not given. `dtype` auto: bf16 where it is
    faster for vectors of `dim`. `threads`: CPU threads of torch. Raises UserError for a dtype that is not known and a device that is not
    there.
    """
    if dtype not in ("auto", "fp32", "bf16"):
        raise UserError(f"--dtype {dtype} is not one for searching", "take fp32, bf16 or auto")
    place = resolve_device(device)
    if place.type not in _PIECE:
        raise UserError(f"search runs on cpu or cuda, not on {device}", "say --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchCandidateGenerator(place, {"fp32": False, "bf16": True, "auto": _fast_bf16(place, dim or 0)}[dtype])


class TorchCandidateGenerator:
    """The best rows by a product in bfloat16 (`half`) or float32; of a list kept while looking, those that may matter."""

    def __init__(self, device: torch.device, half: bool) -> None:
        self.device = device
        self.half = half
        # Scores in bfloat16 tell fewer neighbours apart: more are kept, and those in doubt are scored exactly.
        self.overfetch = 2 if half else 1

    def propose(
        self, queries: np.ndarray, store: EmbeddingStore, plan: Plan, depth: int, label: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Proposer."""
        half = self.half and max(float(np.abs(queries).max(initial=0)), store.largest_norm) < _LARGEST
        dim = store.spec.size.dim
        left = torch.tensor(queries).to(self.device, torch.bfloat16 if half else torch.float32)
        rows = max(256, min(_PIECE[self.device.type], plan.block * dim * 4 // (12 * dim + 16 * len(queries))))
        kept = BestRows(len(queries), plan.candidates, self.device)
        product = _Product(left, min(rows, store.count))
        farthest = 0.0  # no passage moved by more than this when it was rounded
        with torch.inference_mode(), plain_products():
            for start, piece, moved in pieces(store, min(rows, store.count), self.device, left.dtype, label):
                kept.add(start, product(piece))
                farthest = max(farthest, moved)
            scores, found = kept.finish()
        if not half:
            return _needed(scores, found, depth, single_error(queries, store.largest_norm), 0.0)
        moved_queries = np.sqrt(np.square(queries.astype(np.float64) - left.double().cpu().numpy()).sum(axis=1))
        error = _half_error(queries, moved_queries, farthest, store.largest_norm)
        return _needed(scores, found, depth, error, product.share)


class _Product:
    """Scores [queries, rows] of up to `rows` vectors; memory is taken once."""

    def __init__(self, queries: Tensor, rows: int) -> None:
        self.queries = queries
        half = queries.dtype == torch.bfloat16
        # torch sums in float32 everywhere; on a CPU it can only give the sum rounded once more.
        self.share = _UNIT / (1 - _UNIT) if half and queries.device.type == "cpu" else 0.0
        self.wide = half and queries.device.type == "cuda"
        dtype = torch.float32 if self.wide else queries.dtype
        self.buffer = torch.empty(len(queries) * rows, dtype=dtype, device=queries.device)

    def __call__(self, vectors: Tensor) -> Tensor:
        out = self.buffer[: len(self.queries) * len(vectors)].view(len(self.queries), len(vectors))
        if self.wide:
            return torch.mm(self.queries, vectors.T, out_dtype=torch.float32, out=out)
        return torch.mm(self.queries, vectors.T, out=out)


class BestRows:
    """The best `count` scores of each query so far, with their rows."""

    def __init__(self, queries: int, count: int, device: torch.device) -> None:
        self.count = count
        self.filled = 0  # columns of the two, which have room for twice `count` and what one piece may add
        self.scores = torch.empty((queries, 3 * count), dtype=torch.float32, device=device)
        self.rows = torch.empty((queries, 3 * count), dtype=torch.int64, device=device)
        self.floor: Tensor | None = None  # [queries, 1]; scores up to it are of no use, once there are `count`

    def add(self, start: int, scores: Tensor) -> None:
        """Take in scores [queries, rows] of the rows from `start`."""
        if self.floor is None:
            self._take_best(start, scores)
            return
        query, row = _nonzero(scores > self.floor.to(scores.dtype))  # the floor is one of them: it stays what it is
        per_query = torch.bincount(query, minlength=len(scores))
        most = int(per_query.max())
        if most > self.count:
            self._take_best(start, scores)
        elif most:
            place = torch.arange(len(query), device=query.device) - (torch.cumsum(per_query, 0) - per_query)[query]
            values = torch.full((len(scores), most), -torch.inf, device=scores.device)
            rows = torch.zeros((len(scores), most), dtype=torch.int64, device=scores.device)
            values[query, place] = scores[query, row].float()
            rows[query, place] = row + start
            self._append(values, rows)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores, descending, and rows: both [queries, count]."""
        scores, order = self.scores[:, : self.filled].topk(min(self.count, self.filled), dim=1)
        return scores.cpu().numpy(), self.rows.gather(1, order).cpu().numpy()

    def _take_best(self, start: int, scores: Tensor) -> None:
        values, rows = scores.topk(min(self.count, scores.shape[1]), dim=1, sorted=False)
        self._append(values.float(), rows + start)

    def _append(self, scores: Tensor, rows: Tensor) -> None:
        place = slice(self.filled, self.filled + scores.shape[1])
        self.scores[:, place], self.rows[:, place] = scores, rows
        self.filled = place.stop
        if self.filled >= (self.count if self.floor is None else 2 * self.count):
            best, order = self.scores[:, : self.filled].topk(self.count, dim=1, sorted=False)
            self.scores[:, : self.count], self.rows[:, : self.count] = best, self.rows.gather(1, order)
            self.filled, self.floor = self.count, best.min(dim=1, keepdim=True).values


def _nonzero(mask: Tensor) -> tuple[Tensor, Tensor]:
    if mask.device.type != "cpu":
        query, row = mask.nonzero(as_tuple=True)
        return query, row
    found = torch.from_numpy(np.flatnonzero(mask.numpy()))  # ten times as fast where few are set
    return found // mask.shape[1], found % mask.shape[1]


def _needed(
    scores: np.ndarray, rows: np.ndarray, depth: int, error: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that may be among the `depth` best [queries, some], and what no other row exceeds [queries].

    `scores`, `rows`: [queries, candidates], descending. An exact score differs from its own by at most `share` of it
    and `error` [queries].
    """
    scores = scores.astype(np.float64)
    highest = scores + share * np.abs(scores) + error[:, None]
    last = scores[:, depth - 1]
    reached = last - share * np.abs(last) - error  # `depth` passages have at least this
    width = max(depth, int((highest >= reached[:, None]).sum(axis=1).max()))
    return rows[:, :width], highest[:, min(width, scores.shape[1] - 1)]


def _half_error(queries: np.ndarray, moved: np.ndarray, farthest: float, largest_norm: float) -> np.ndarray:
    """How far a product of vectors rounded to bfloat16, summed in float32, can be from the exact one: [queries].

    |q.p - q'.p'| <= |q - q'| |p| + |q'| |p - p'|, where q' and p' are the rounded vectors. `moved`: |q - q'| of each
    query; `farthest`: the largest |p - p'|. The units that multiply bfloat16 cut off sums instead of rounding them, and
    take the smallest numbers for zero: four times the bound of single precision, and a term for the latter.
    """
    norms = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1)) + moved
    tiny = queries.shape[1] * float(np.finfo(np.float32).tiny) * (1 + norms + largest_norm)
    rounding = (moved * largest_norm + norms * farthest) * (1 + 1e-9)
    return rounding + 4 * (1 + 2 * _UNIT) ** 2 * single_error(queries, largest_norm) + tiny


@contextmanager
def plain_products() -> Iterator[None]:
    """Inside it, float32 products are taken in float32, whatever the program allows elsewhere: the error bound is theirs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _fast_bf16(device: torch.device, dim: int) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(False)
    able = torch.cpu.get_capabilities()
    # Without tiles the products save less than rounding costs, unless vectors are long (bench/search_exact.py).
    return bool(able.get("amx_bf16") or (able.get("avx512_bf16") and dim >= _LONG))
