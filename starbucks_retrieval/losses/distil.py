"""Distillation without labels: every size learns a teacher's embedding of each text and its scores with the others.

The teacher is the frozen full embedding, or another model whose embeddings were mapped into the space of that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, check_temperatures
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.losses.functional import score_kl
from starbucks_retrieval.sizes import Size, Sizes

_TINY = 1e-12


@dataclass(frozen=True)
class DistilOptions(Options):
    """Options of distillation without labels; the contrastive ones of every method have no meaning for it.

    Args:
        cosine_weight: Weight of 1 - cosine between the embedding at (n, d) and the first d numbers of the teacher's; for
            dot products half the squared distance, relative to the squared length.
        kl_weight: Weight of the KL divergence from the teacher's scores of the other texts of the batch.
        kl_temperature: Divides the scores that the KL compares; None: `temperature`.
        asymmetric_weight: Weight of the same KL with the scores against frozen full-depth embeddings cut to d, so that
            queries at (n, d) find passages at the last layer.
        full_weight: Weight of the cosine between the full size and the frozen full embedding, whoever teaches the small
            sizes: training for them then changes the full size little.
        full_follows: Whether the full size keeps its own frozen embedding ("own"), or learns from another teacher as the
            small sizes do ("teacher"); `full_weight` then has no meaning.
        spread_weight: Weight of the global orthogonal regulariser (arXiv 1708.06320): embeddings of different texts
            have mean cosine 0 and mean squared cosine at most 1/d.
    """

    labelled: ClassVar[bool] = False
    cosine_weight: float = 1.0
    kl_temperature: float | None = None
    asymmetric_weight: float = 0.0
    full_weight: float = 5.0
    full_follows: Literal["own", "teacher"] = "own"
    spread_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperatures(self.kl_temperature)
        for name in ("cosine_weight", "asymmetric_weight", "full_weight", "spread_weight"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)} is negative", "0 switches the term off")
        if not (self.cosine_weight or self.kl_weight or self.asymmetric_weight):
            raise UserError("every loss of the small sizes has the weight 0", "give one of them a weight")

    @property
    def by_query(self) -> bool:
        """As in `Options`; the regulariser is no mean over texts."""
        return self.spread_weight == 0


class Distil(Objective[DistilOptions]):
    """L = mean over the sizes of [cosine + λ KL(frozen ‖ size) + asymmetric + spread] + anchor of the full size.

    The batch's queries are the texts, and its passages the same texts, of all processes; a text is no passage of itself.
    Related: Matryoshka-Adaptor (arXiv 2407.20243), which trains adapters on frozen embeddings.

    Example:
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> rows = {layer: torch.eye(2, 4) for layer in (1, 2)}
        >>> loss = Distil(Sizes.parse("1:2,2:4"), Size(2, 4), DistilOptions(normalize=True))
        >>> loss(Batch(rows, rows, frozen_queries=torch.eye(2, 4), frozen_passages=torch.eye(2, 4))).total
        tensor(0.)
    """

    def __init__(self, sizes: Sizes, full: Size, options: DistilOptions) -> None:
        super().__init__(sizes, full, options)
        self.largest = full if full in sizes.members else sizes.full
        follows = options.full_follows == "teacher"
        self._small = tuple(size for size in sizes if size != full or follows)
        self._keeps_full = full in sizes.members and not follows and options.full_weight > 0
        if not self._small:
            raise UserError(f"the sizes {sizes} are the full one alone, which has nothing to learn", "add smaller ones")

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """Return every size."""
        return self.sizes.members

    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the losses of all sizes. Without frozen embeddings in the batch, its own largest size teaches.

        Returns:
            The total, and parts `cosine/<size>`; also `kl/`, `asymmetric/` and `spread/<size>` where their
            weight is not 0.
        """
        options, batch = self.options, views.batch
        queries, passages = batch.frozen_queries, batch.frozen_passages
        if queries is None or passages is None:
            queries, passages = views.queries(self.largest).detach(), views.passages(self.largest).detach()
        excluded = _itself(batch.targets, len(passages)) if batch.excluded is None else batch.excluded
        temperature = options.kl_temperature or options.temperature
        teacher = batch.teacher_scores
        if teacher is None:
            teacher = _scores(queries, passages, options.normalize)
        learned = queries if batch.teacher_targets is None else batch.teacher_targets[batch.targets]
        if batch.teacher_targets is not None and options.full_follows == "teacher":
            passages = batch.teacher_targets  # where the full size moves to
        parts: dict[str, Tensor] = {}
        total = teacher.new_zeros(())
        for size in self._small:
            terms = {"cosine": (options.cosine_weight, self._distance(views, size, learned))}
            if options.kl_weight:
                terms["kl"] = options.kl_weight, score_kl(teacher, views.scores(size), temperature, excluded)
            if options.asymmetric_weight:
                across = _scores(views.queries(size), passages[:, : size.dim], options.normalize)
                terms["asymmetric"] = options.asymmetric_weight, score_kl(teacher, across, temperature, excluded)
            if options.spread_weight:
                terms["spread"] = options.spread_weight, spread(views.queries(size), views.passages(size), excluded)
            for name, (weight, value) in terms.items():
                total = total + weight * value / len(self._small)
                parts[f"{name}/{size}"] = value.detach()
        if self._keeps_full:
            kept = self._distance(views, self.full, queries)
            total = total + options.full_weight * kept
            parts[f"cosine/{self.full}"] = kept.detach()
        return Loss(total, parts)

    def _distance(self, views: BatchViews, size: Size, frozen: Tensor) -> Tensor:
        found, expected = views.queries(size), frozen[:, : size.dim]
        if self.options.normalize:
            return (1 - torch.cosine_similarity(found, expected, dim=1, eps=_TINY)).mean()
        square = expected.square().sum(1).clamp(min=_TINY)
        return ((found - expected).square().sum(1) / (2 * square)).mean()


def spread(queries: Tensor, passages: Tensor, excluded: Tensor) -> Tensor:
    """Return the global orthogonal regulariser: M1² + max(0, M2 - 1/d), of cosines between different texts.

    Source: the global orthogonal regulariser (arXiv 1708.06320); M1 is the mean cosine and M2 the mean squared one.

    Args:
        queries: [queries, d].
        passages: [passages, d].
        excluded: Bool [queries, passages], pairs that do not count.

    Example:
        >>> apart = torch.eye(2)
        >>> spread(apart, apart, torch.eye(2, dtype=torch.bool))
        tensor(0.)
    """
    cosines = _scores(queries, passages, True).masked_fill(excluded, 0)
    count = (~excluded).sum().clamp(min=1)
    mean, square = cosines.sum() / count, cosines.square().sum() / count
    return mean.square() + (square - 1 / queries.shape[1]).clamp(min=0)


def _scores(queries: Tensor, passages: Tensor, normalize: bool) -> Tensor:
    if normalize:
        queries, passages = (torch.nn.functional.normalize(rows, dim=1) for rows in (queries, passages))
    return queries @ passages.T


def _itself(targets: Tensor, passages: int) -> Tensor:
    return targets[:, None] == torch.arange(passages, device=targets.device)


METHOD = Method(Distil, {"distil": DistilOptions()}, "distillation of its full size without labels")
