"""Negatives besides the passages of a batch, and negatives that score too high to be ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.sizes import Size


@dataclass(frozen=True)
class Negatives:
    """Which texts of a batch are negatives.

    Sources: Qwen3-Embedding (arXiv 2506.05176) has all three; GISTEmbed (arXiv 2402.16829) decides by a guide's scores.

    Args:
        queries: Other queries are negatives of a query.
        passages: The positives of other queries are negatives of a query's positive.
        margin: A negative that scores above the positive plus this number is left out; None leaves out none.
    """

    queries: bool = False
    passages: bool = False
    margin: float | None = None


class MoreNegatives(BatchViews):
    """Embeddings and scores of a batch as in `BatchViews`, with further negatives and masks for InfoNCE alone.

    Args:
        batch: The pooled outputs.
        negatives: Which texts are negatives.
        largest: The size whose scores decide what is left out, if there is no guide.
        others: The other arguments of `BatchViews`.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> views = MoreNegatives(Batch({1: rows}, {1: rows}), Negatives(queries=True), Size(1, 2))
        >>> scores, excluded = views.contrast(Size(1, 2))
        >>> scores.tolist(), excluded.int().tolist()
        ([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]], [[0, 0, 1, 0], [0, 0, 0, 1]])
    """

    def __init__(self, batch: Batch, negatives: Negatives, largest: Size, *others: Any) -> None:
        super().__init__(batch, *others)
        self._negatives = negatives
        self._largest = largest

    def contrast(self, size: Size) -> tuple[Tensor, Tensor | None]:
        """Return scores [queries, passages + further negatives] at a size, and the mask of the same shape."""
        scores, more = self.scores(size), self._more(size)
        mask = self._mask
        return (scores if more is None else torch.cat([scores, more], dim=1)), mask

    @cached_property
    def _mask(self) -> Tensor:
        """Bool [queries, passages + further negatives]: what is no negative of a query, at every size."""
        batch, kinds = self.batch, self._negatives.queries + self._negatives.passages
        rows, columns = len(batch.targets), len(next(iter(batch.passages.values())))
        mask = self.excluded
        if mask is None:
            mask = torch.zeros(rows, columns, dtype=torch.bool, device=batch.targets.device)
        if kinds:
            # If the positive of another query is a known positive of this one, neither is a negative here.
            itself = batch.all_targets == batch.targets[:, None]
            mask = torch.cat([mask, (itself | mask[:, batch.all_targets]).repeat(1, kinds)], dim=1)
        return mask if self._negatives.margin is None else mask | self._too_high(self._negatives.margin)

    @torch.no_grad()
    def _too_high(self, margin: float) -> Tensor:
        if self.batch.guide is None:
            scores, more = self.scores(self._largest), self._more(self._largest)
        else:
            queries, passages, others = self.batch.guide
            scores, more = queries @ passages.T, self._pairs(queries, others, passages)
        targets = self.batch.targets[:, None]
        found = scores if more is None else torch.cat([scores, more], dim=1)
        return (found > scores.gather(1, targets) + margin).scatter_(1, targets, False)

    def _more(self, size: Size) -> Tensor | None:
        others = (self.batch.other_queries or self.batch.queries)[size.layer][:, : size.dim]
        rows = [self.queries(size), others, self.passages(size)]
        if self.normalize:
            rows = [functional.normalize(part, dim=1) for part in rows]
        return self._pairs(*rows)

    def _pairs(self, queries: Tensor, others: Tensor, passages: Tensor) -> Tensor | None:
        """Return the scores of queries with other queries, then of their positives with other positives."""
        found = [queries @ others.T] if self._negatives.queries else []
        if self._negatives.passages:
            found.append(passages[self.batch.targets] @ passages[self.batch.all_targets].T)
        return torch.cat(found, dim=1) if found else None
