"""What a loss sees of one step, and the scores of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from starbucks_retrieval.losses.contrastive import positive_columns
from starbucks_retrieval.sizes import Size

_TINY = 1e-12


class Loss(NamedTuple):
    """A total to back-propagate and its detached parts by name, such as `ce/6:128` and `kl/6:128`."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Pooled taps {layer: [texts, hidden]} of queries and passages, and what is known about their pairs.

    Passages lie group after group, the positive first. excluded: bool [queries, passages], passages that are neither
    positive nor negative for a query. labels: [queries], how similar each query and its one passage are (scored pairs).
    teacher: [queries, group], another model's scores of each query's own group. Where passages of other processes are
    among the passages, `group` is the passages per query and `offset` the column of the first own one.
    """

    queries: Mapping[int, Tensor]
    passages: Mapping[int, Tensor]
    excluded: Tensor | None = None
    labels: Tensor | None = None
    teacher: Tensor | None = None
    group: int | None = None
    offset: int = 0

    @cached_property
    def targets(self) -> Tensor:
        """The column of each query's positive: [queries]."""
        some, others = next(iter(self.queries.values())), next(iter(self.passages.values()))
        passages = len(some) * self.group if self.group else len(others)
        return self.offset + positive_columns(len(some), passages, some.device)

    @cached_property
    def own(self) -> Tensor:
        """The columns of each query's own group: [queries, group]."""
        some, others = next(iter(self.queries.values())), next(iter(self.passages.values()))
        group = self.group or len(others) // len(some)
        return self.targets[:, None] + torch.arange(group, device=some.device)


class Views:
    """Scores and vectors of a batch at any size. No tensor of shape [queries, passages, hidden] ever exists.

    With `normalize` scores are cosines, else dot products. passage_layers {query layer: passage layer} pairs sizes of
    different depth; layers it lacks are paired with themselves.
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
        self.excluded = batch.excluded if in_batch else _outside_own_group(batch)
        self._passage_layers = passage_layers or {}
        self._sums: dict[int, dict[int, tuple[Tensor, Tensor, Tensor]]] = {}
        self._scores: dict[Size, Tensor] = {}

    def queries(self, size: Size) -> Tensor:
        """Raw query embeddings [queries, dim]."""
        return self.batch.queries[size.layer][:, : size.dim]

    def passages(self, size: Size) -> Tensor:
        """Raw passage embeddings [passages, dim], at the layer that is paired with the size's."""
        return self.batch.passages[self.passage_layer(size.layer)][:, : size.dim]

    def texts(self, size: Size) -> Tensor:
        """Raw embeddings of queries and passages, one below the other: [queries + passages, dim]."""
        return torch.cat([self.queries(size), self.passages(size)])

    def passage_layer(self, layer: int) -> int:
        """The layer whose passages queries of `layer` are scored against."""
        return self._passage_layers.get(layer, layer)

    def scores(self, size: Size) -> Tensor:
        """Scores [queries, passages] at a size.

        The dims of one layer nest, so each adds only its own block of coordinates to the next smaller one asked before.
        """
        if size not in self._scores:
            dot, q_square, p_square = self._sum(size)
            self._scores[size] = dot / _norm(q_square)[:, None] / _norm(p_square)[None, :] if self.normalize else dot
        return self._scores[size]

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
    # Clamped before the root: the root's derivative at zero is infinite.
    return square.clamp(min=_TINY**2).sqrt()


def _outside_own_group(batch: Batch) -> Tensor:
    passages = len(next(iter(batch.passages.values())))
    outside = torch.ones(len(batch.own), passages, dtype=torch.bool, device=batch.own.device)
    outside.scatter_(1, batch.own, False)
    return outside if batch.excluded is None else outside | batch.excluded
