"""Search a layer at all dims in one pass over its passages: scores of growing dims add up block by block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search.engines import Candidates, MemoryPlan, plan_memory
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.engines.tensor_blocks import tensor_blocks
from starbucks_retrieval.search.engines.top_rows import TopRows, merged
from starbucks_retrieval.search.engines.torch import float32_products
from starbucks_retrieval.search.queries import check_queries
from starbucks_retrieval.search.scores import single_error
from starbucks_retrieval.search.stores import SlicedStore
from starbucks_retrieval.store import EmbeddingStore

_PIECE = {"cpu": 2**12, "cuda": 2**16}  # rows per product, memory permitting
_SMALLEST = 1e-12  # torch's bound: shorter vectors are not normalised
_UNIT = 2.0**-24  # relative rounding error of float32


class TruncatedView(SlicedStore):
    """The embeddings at `dim` of a store of wider, unnormalised pooled outputs; nothing is copied.

    They are float32. From a float32 store they equal the embeddings of encoding at that size.

    Args:
        pooled_layers: The store of one layer.
        dim: How many numbers of each vector are kept.
        normalize: Divide each embedding by its length.

    Raises:
        UserError: The store does not hold the dim.
    """

    def __init__(self, pooled_layers: EmbeddingStore, dim: int, normalize: bool) -> None:
        super().__init__(pooled_layers, dim)
        self.spec = dataclasses.replace(self.spec, normalize=normalize, store_dtype="float32")
        if normalize:
            kind = np.finfo(np.float32)
            self.largest_norm = 1 + 1e-5 + float(kind.eps) + math.sqrt(dim) * float(kind.smallest_subnormal)

    def _cut(self, wide: np.ndarray) -> np.ndarray:
        return truncated_views(wide, self.spec.size.dim, self.spec.normalize)


def truncated_views(pooled_layers: np.ndarray, dim: int, normalize: bool) -> np.ndarray:
    """Return the embeddings at one dim of pooled outputs.

    Args:
        pooled_layers: (rows, width) float, may be memory-mapped.
        dim: How many numbers of each row are kept; at most the width.
        normalize: Divide each embedding by its length.

    Returns:
        (rows, dim) float32, a copy.
    """
    part = np.array(pooled_layers[:, :dim], dtype=np.float32)  # a copy, because memory-mapped arrays are read-only
    return embedding(torch.from_numpy(part), dim, normalize).numpy()


@dataclasses.dataclass(frozen=True)
class RowsByDim:
    """The best passages of a batch of queries at one dim.

    Attributes:
        dim: The dim.
        start: The first query of the batch.
        rows: int [queries, depth], rows of passages, best first.
        scores: [queries, depth], their scores.
    """

    dim: int
    start: int
    rows: np.ndarray
    scores: np.ndarray


def search_all_dims(
    queries: np.ndarray,
    passages: EmbeddingStore,
    dims: Sequence[int],
    depth: int,
    *,
    normalize: bool,
    max_memory: str | int = "2GB",
    device: str | torch.device = "cpu",
    label: str = "",
) -> Iterator[RowsByDim]:
    """Yield the best passages of each query at every dim, one pass over the passages for each batch of queries.

    Results equal those of `exact_search` over embeddings encoded at each size: the pass generates candidates in single
    precision, and queries whose top passages could change within its error bound are rescored exactly.

    Args:
        queries: float32 [queries, width], pooled outputs; an embedding is the first d numbers of one.
        passages: Store of pooled outputs of the same width.
        dims: Ascending.
        depth: Passages per query.
        normalize: Whether embeddings have length 1.
        max_memory: For vectors and result lists, about.
        device: Of the pass.
        label: Names the progress bar.

    Raises:
        UserError: As `exact_search`.
    """
    queries = check_queries(queries, passages, depth)
    memory = parse_bytes(max_memory)
    depth = min(depth, passages.count)
    plan = plan_memory(memory, -1, depth, passages.count, passages.spec.size.dim)
    batch = max(1, plan.batch // len(dims))  # one list a dim
    torch_device = torch.device(device)
    stores = {dim: TruncatedView(passages, dim, normalize) for dim in dims}
    for start in range(0, len(queries), batch):
        query_batch = queries[start : start + batch]
        shown = f"{label}, queries {start + 1} to {start + len(query_batch)} of {len(queries)}" if label else ""
        proposals = _propose(query_batch, passages, dims, normalize, plan, torch_device, shown)
        for dim in dims:
            rows, scores = proposals.pop(dim)
            truncated = truncated_views(query_batch, dim, normalize)
            generator = _Proposed(rows, scores, single_error(truncated, stores[dim].largest_norm), normalize)
            at = start
            for found in exact_search(
                truncated, stores[dim], depth, batch_size=-1, max_memory=memory, generator=generator
            ):
                yield RowsByDim(dim, at, *found)
                at += len(found[0])


class _Proposed:
    """Candidates that one pass found for all dims. It is called for one batch of queries after another."""

    overfetch = 1

    def __init__(self, rows: np.ndarray, scores: np.ndarray, error: np.ndarray, normalize: bool) -> None:
        """`error` [queries]: how far a product in single precision can be from the exact one.

        A sum of blocks is a sum in some order: the bound holds for it. With lengths divided out it holds for the
        cosine of the pooled outputs; from there to the embeddings' inner product it is as far again at most, for the lengths
        that were computed in single precision, and a few roundings.
        """
        self.rows = rows
        self.ceiling = scores.min(axis=1) + (2 * error + 16 * _UNIT if normalize else error)
        self.given = 0

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> Candidates:
        """Return the candidates of the next batch of queries, found by the shared pass."""
        batch = slice(self.given, self.given + len(queries))
        self.given = batch.stop
        return Candidates(self.rows[batch], self.ceiling[batch])


def _propose(
    queries: np.ndarray,
    passages: EmbeddingStore,
    dims: Sequence[int],
    normalize: bool,
    plan: MemoryPlan,
    device: torch.device,
    label: str,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For every dim the rows and scores, both [queries, candidates], of the best candidates by single precision."""
    width = passages.spec.size.dim
    # A piece in single precision, its squares, the sums, their scaled copy and a mask share half the memory.
    rows = max(256, min(_PIECE[device.type], plan.block * width * 4 // (16 * width + 16 * len(queries))))
    rows = min(rows, passages.count)
    left = torch.tensor(queries).to(device)
    kept = {dim: TopRows(len(queries), plan.candidates, device) for dim in dims}
    sums, scaled = (torch.empty(len(queries) * rows, device=device) for _ in range(2))
    with torch.inference_mode(), float32_products():
        for start, piece, _ in tensor_blocks(passages, rows, device, torch.float32, label):
            shape = len(queries), len(piece)
            total, copy = (buffer[: shape[0] * shape[1]].view(shape) for buffer in (sums, scaled))
            lengths = _inverse_lengths(piece, dims) if normalize else None
            for i, (low, high) in enumerate(pairwise((0, *dims))):
                total.addmm_(left[:, low:high], piece[:, low:high].T, beta=1 if low else 0)
                if lengths is not None:
                    torch.mul(total, lengths[i], out=copy)
                kept[high].add(start, total if lengths is None else copy)
        scale = _inverse_lengths(left, dims).double().cpu().numpy() if normalize else np.ones((len(dims), len(queries)))
        found = {dim: merged([best]) for dim, best in kept.items()}
    return {dim: (rows, scores * scale[i][:, None]) for i, (dim, (scores, rows)) in enumerate(found.items())}


def _inverse_lengths(pooled_layers: Tensor, dims: Sequence[int]) -> Tensor:
    """1 / length of the first d numbers of each vector, for each dim: [dims, vectors] float32."""
    squares = pooled_layers.new_zeros(len(pooled_layers), dtype=torch.float64)
    lengths = []
    for low, high in pairwise((0, *dims)):
        squares = squares + pooled_layers[:, low:high].double().square().sum(dim=1)
        lengths.append(squares.sqrt().clamp(min=_SMALLEST).reciprocal().float())
    return torch.stack(lengths)
