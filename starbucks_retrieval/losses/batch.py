"""The input of a loss, one batch of pooled outputs, and its embeddings and scores at any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from starbucks_retrieval.losses.functional import positive_columns, round_to_bits
from starbucks_retrieval.sizes import Size

_TINY = 1e-12


class Loss(NamedTuple):
    """The loss of a batch.

    Attributes:
        total: A scalar to back-propagate.
        parts: Its detached terms by name, such as `ce/6:128` and `kl/6:128`.
    """

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Pooled outputs of the queries and passages of one step.

    Args:
        queries: {layer: [queries, hidden]}.
        passages: {layer: [passages, hidden]}, group after group, the positive first in each.
        excluded: Bool [queries, passages], passages that are neither positive nor negative for a query.
        labels: [queries], how similar each query and its one passage are (scored pairs).
        teacher: [queries, group], another model's scores of each query's own group.
        group: Passages per query, where passages of other processes are among the passages; None: all are this batch's.
        offset: The column of the first passage of this process.
        frozen_queries: [queries, width], full embeddings of the queries by a frozen model, for losses without labels.
        frozen_passages: [passages, width], the same of the passages.
        teacher_scores: [queries, passages], another model's scores, for losses without labels.
        teacher_targets: [passages, width], its embeddings of the passages, mapped into the space of the frozen ones.
        other_queries: {layer: [all queries, hidden]}, the queries of all processes, where they are negatives; None: they
            are `queries`.
        guide: Another model's embeddings of the queries, of the passages, and of the queries of all processes, whose dot
            products decide which negatives are left out.

    Example:
        >>> batch = Batch({1: torch.ones(2, 4)}, {1: torch.ones(6, 4)})
        >>> batch.targets.tolist(), batch.group_columns.tolist()
        ([0, 3], [[0, 1, 2], [3, 4, 5]])
    """

    queries: Mapping[int, Tensor]
    passages: Mapping[int, Tensor]
    excluded: Tensor | None = None
    labels: Tensor | None = None
    teacher: Tensor | None = None
    group: int | None = None
    offset: int = 0
    frozen_queries: Tensor | None = None
    frozen_passages: Tensor | None = None
    teacher_scores: Tensor | None = None
    teacher_targets: Tensor | None = None
    other_queries: Mapping[int, Tensor] | None = None
    guide: tuple[Tensor, Tensor, Tensor] | None = None

    @cached_property
    def targets(self) -> Tensor:
        """The column of each query's positive: [queries]."""
        queries, passages = next(iter(self.queries.values())), next(iter(self.passages.values()))
        count = len(queries) * self.group if self.group else len(passages)
        return self.offset + positive_columns(len(queries), count, queries.device)

    @cached_property
    def all_targets(self) -> Tensor:
        """The column of the positive of every query of all processes: [all queries]."""
        queries, passages = (next(iter(side.values())) for side in (self.other_queries or self.queries, self.passages))
        return positive_columns(len(queries), len(passages), queries.device)

    @cached_property
    def group_columns(self) -> Tensor:
        """The columns of each query's own group: [queries, group]."""
        queries, passages = next(iter(self.queries.values())), next(iter(self.passages.values()))
        group = self.group or len(passages) // len(queries)
        return self.targets[:, None] + torch.arange(group, device=queries.device)


class BatchViews:
    """The embeddings and scores of a batch at any size. No tensor of shape [queries, passages, hidden] is made.

    Args:
        batch: The pooled outputs.
        normalize: Scores are cosines instead of dot products.
        in_batch: Passages of other queries are negatives; if False, each query is scored with its own group alone.
        passage_layers: {query layer: passage layer} for sizes whose passages have another depth.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> views = BatchViews(Batch({2: rows}, {2: rows}))
        >>> views.scores(Size(2, 1)).tolist(), views.scores(Size(2, 2)).tolist()
        ([[9.0, 0.0], [0.0, 0.0]], [[25.0, 4.0], [4.0, 1.0]])
    """

    def __init__(
        self,
        batch: Batch,
        normalize: bool = False,
        in_batch: bool = True,
        passage_layers: Mapping[int, int] | None = None,
    ) -> None:
        self.batch = batch
        self.normalize = normalize
        self.excluded = batch.excluded if in_batch else outside_group(batch)
        self._passage_layers = passage_layers or {}
        self._sums: dict[int, dict[int, tuple[Tensor, Tensor, Tensor]]] = {}
        self._scores: dict[Size, Tensor] = {}

    def queries(self, size: Size) -> Tensor:
        """Return the query embeddings [queries, dim], not normalised."""
        return self.batch.queries[size.layer][:, : size.dim]

    def passages(self, size: Size) -> Tensor:
        """Return the passage embeddings [passages, dim], not normalised, at the layer paired with the size's."""
        return self.batch.passages[self.passage_layer(size.layer)][:, : size.dim]

    def texts(self, size: Size) -> Tensor:
        """Return the embeddings of queries, then of passages: [queries + passages, dim]."""
        return torch.cat([self.queries(size), self.passages(size)])

    def passage_layer(self, layer: int) -> int:
        """Return the layer of the passages that queries at `layer` are scored against."""
        return self._passage_layers.get(layer, layer)

    def scores(self, size: Size) -> Tensor:
        """Return the scores [queries, passages] at a size.

        The dims of one layer nest: each adds its own block of coordinates to the largest smaller dim computed before.
        """
        if size not in self._scores:
            dot, q_square, p_square = self._sum(size)
            self._scores[size] = dot / _norm(q_square)[:, None] / _norm(p_square)[None, :] if self.normalize else dot
        return self._scores[size]

    def binary_scores(self, size: Size) -> Tensor:
        """Return the scores [queries, passages] at a size with the passages rounded to a bit a number."""
        queries, passages = self.queries(size), self.passages(size)
        if self.normalize:
            queries, passages = (torch.nn.functional.normalize(side, dim=1) for side in (queries, passages))
        return queries @ round_to_bits(passages).T

    def contrast(self, size: Size) -> tuple[Tensor, Tensor | None]:
        """Return what InfoNCE compares at a size: scores [queries, passages], and the mask of what is no negative."""
        return self.scores(size), self.excluded

    def _sum(self, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        q, p = self.batch.queries[size.layer], self.batch.passages[self.passage_layer(size.layer)]
        zero = q.new_zeros(())
        known = self._sums.setdefault(size.layer, {0: (zero, zero, zero)})
        if size.dim not in known:
            start = max(dim for dim in known if dim < size.dim)
            dot, q_square, p_square = known[start]
            q_block, p_block = q[:, start : size.dim], p[:, start : size.dim]
            known[size.dim] = (
                dot + q_block @ p_block.T,
                q_square + q_block.square().sum(1) if self.normalize else zero,
                p_square + p_block.square().sum(1) if self.normalize else zero,
            )
        return known[size.dim]


def _norm(square: Tensor) -> Tensor:
    # Clamped before the root, whose derivative at zero is infinite.
    return square.clamp(min=_TINY**2).sqrt()


def outside_group(batch: Batch) -> Tensor:
    """Return bool [queries, passages]: the passages that are not in a query's own group, or are excluded."""
    columns = batch.group_columns
    passages = len(next(iter(batch.passages.values())))
    outside = torch.ones(len(columns), passages, dtype=torch.bool, device=columns.device)
    outside.scatter_(1, columns, False)
    return outside if batch.excluded is None else outside | batch.excluded
