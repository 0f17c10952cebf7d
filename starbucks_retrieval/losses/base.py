"""What all methods share: options, the base class of objectives, the loss of one size, and distillation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.batch import Batch, BatchViews, Loss
from starbucks_retrieval.losses.functional import info_nce, kl_rows
from starbucks_retrieval.losses.negatives import MoreNegatives, Negatives
from starbucks_retrieval.losses.pairs import pair_losses
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class Options:
    """The options of every method: how the loss of one size is computed.

    Args:
        temperature: Divides the scores in the contrastive loss (InfoNCE; over cosines, multiple negatives ranking).
        normalize: Score by cosine instead of dot product.
        in_batch: Passages of other queries are negatives too; if False, only those of the query's own group.
        contrastive_weight: Weight of InfoNCE.
        angle_weight: Weight of the angle loss over labelled pairs.
        cosent_weight: Weight of CoSENT over labelled pairs.
        binary_weight: Weight of InfoNCE over passages rounded to a bit a number, for binary stores.
        pair_temperature: Temperature of these two.
        passage_layers: Pairs (query layer, passage layer), where passages are scored at another depth.
        kl_weight: Weight of the method's alignment of small sizes with the full one.
        distil_weight: Weight of the KL divergence from another model's scores of a query's own group, at every size.
        distil_temperature: Divides the other model's scores.
        distil_reduction: Average the divergence over queries ("batchmean") or over queries and passages ("mean", as
            RetroMAE's code does).
        false_negative_margin: In InfoNCE, leave out negatives that score above the positive plus this number, at the
            largest size or by a guide; None leaves out none.
        query_negatives: In InfoNCE, other queries are negatives of a query.
        passage_negatives: In InfoNCE, the positives of other queries are negatives of a query's positive.

    Raises:
        UserError: A value is out of range, or values contradict each other.
    """

    labelled: ClassVar[bool] = True  # whether the method needs queries with their passages, instead of texts alone

    temperature: float = 1.0
    normalize: bool = False
    in_batch: bool = True
    contrastive_weight: float = 1.0
    angle_weight: float = 0.0
    cosent_weight: float = 0.0
    binary_weight: float = 0.0
    pair_temperature: float = 0.05
    passage_layers: tuple[tuple[int, int], ...] = ()
    kl_weight: float = 1.0
    distil_weight: float = 0.0
    distil_temperature: float = 1.0
    distil_reduction: Literal["batchmean", "mean"] = "batchmean"
    false_negative_margin: float | None = None
    query_negatives: bool = False
    passage_negatives: bool = False

    def __post_init__(self) -> None:
        check_temperatures(self.temperature, self.pair_temperature, self.distil_temperature)
        weights = ("contrastive_weight", "angle_weight", "cosent_weight", "binary_weight", "distil_weight")
        for name in ("kl_weight", *weights):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} {getattr(self, name)} is negative", "0 switches the term off")
        if not any(getattr(self, name) for name in weights):
            raise UserError("every loss has the weight 0", "give one of them a weight")
        if self.cosent_weight and not self.normalize:
            raise UserError("CoSENT compares cosines", "add --normalize true")
        if (self.query_negatives or self.passage_negatives) and not self.in_batch:
            raise UserError(
                "--query_negatives and --passage_negatives are in-batch negatives, and --in_batch_negatives is false",
                "drop one of the two",
            )
        if self.negatives != Negatives() and not self.contrastive_weight:
            raise UserError(
                "--false_negative_margin, --query_negatives and --passage_negatives belong to InfoNCE, whose weight is 0",
                "drop them, or set --contrastive_weight",
            )

    @property
    def negatives(self) -> Negatives:
        """Which texts of a batch are negatives, besides the passages of other queries."""
        return Negatives(self.query_negatives, self.passage_negatives, self.false_negative_margin)

    @property
    def by_query(self) -> bool:
        """Whether the loss is a mean over queries of terms that need one query and all passages."""
        return not (self.angle_weight or self.cosent_weight)


def check_temperatures(*temperatures: float | None) -> None:
    """Raise UserError unless every temperature that is given is positive."""
    if not all(temperature is None or temperature > 0 for temperature in temperatures):
        raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")


T = TypeVar("T", bound=Options)


class Objective(ABC, Generic[T]):
    """A training method: the sizes that a step visits, and the loss over them.

    Args:
        sizes: The sizes that the model stores.
        full: The full size of the backbone.
        options: The method's options.

    Attributes:
        largest: The largest size that every step visits; the full one unless the method says otherwise.

    Raises:
        UserError: The sizes or the options do not fit the method.
    """

    def __init__(self, sizes: Sizes, full: Size, options: T) -> None:
        self.sizes = sizes
        self.full = full
        self.largest = full
        self.options = options

    def check_dims(self, dims: Iterable[int]) -> None:
        """Raise UserError for a dim that the options cannot be applied to."""
        odd = [dim for dim in dims if dim % 2]
        if odd and self.options.angle_weight:
            raise UserError(f"the angle loss splits vectors in two, and {odd[0]} is odd", "use even dims only")

    def draw(self, rng: np.random.Generator) -> Any:
        """Return the random choice of one step, None for a method without one; equal generators give equal choices."""
        return None

    @abstractmethod
    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """Return the sizes that a step's contrastive losses are taken at.

        Args:
            drawn: What `draw` returned for the step.
        """

    @abstractmethod
    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the loss of a batch and its parts, without distillation.

        Args:
            views: The embeddings and scores of the batch at any size.
            drawn: What `draw` returned for the step.
        """

    @property
    def depth(self) -> int:
        """The deepest layer that queries or passages run through."""
        return max(self.largest.layer, *(layer for _, layer in self.options.passage_layers), 0)

    @property
    def trained_layers(self) -> tuple[int, ...]:
        """The layers that some step visits, of queries or of passages, ascending."""
        return tuple(sorted({layer for side in self.layers(None) for layer in side}))

    def layers(self, drawn: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the layers whose pooled outputs a step needs: of queries, and of passages."""
        layers = {size.layer for size in self.visited(drawn)}
        paired = dict(self.options.passage_layers)
        return tuple(sorted(layers)), tuple(sorted({paired.get(layer, layer) for layer in layers}))

    def __call__(self, batch: Batch, drawn: Any = None) -> Loss:
        """Return the loss of a batch and its parts. `drawn` is what `draw` returned for the step."""
        options = self.options
        others = options.normalize, options.in_batch, dict(options.passage_layers)
        views = BatchViews(batch, *others)
        if options.negatives != Negatives():
            views = MoreNegatives(batch, options.negatives, self.largest, *others)
        loss = self.loss(views, drawn)
        if options.distil_weight == 0:
            return loss
        distilled = distil(views, self.visited(drawn), options)
        return Loss(loss.total + distilled.total, loss.parts | distilled.parts)


class Method(NamedTuple):
    """A registered training method.

    Attributes:
        objective: Its class; called as `objective(sizes, full, options)`.
        variants: Its published versions, name → options; the first is the default.
        title: Its name in model cards: "A text encoder trained with <title>".
    """

    objective: type[Objective]
    variants: Mapping[str, Options]
    title: str

    @property
    def labelled(self) -> bool:
        """Whether it needs queries with their passages, instead of texts alone."""
        return next(iter(self.variants.values())).labelled


def size_loss(views: BatchViews, size: Size, options: Options) -> Tensor:
    """Return the weighted sum of the losses of one size: InfoNCE, also over rounded passages, the angle loss and CoSENT.

    Args:
        views: The batch, whose embeddings and scores are taken at `size`.
        size: The size of the queries; passages are at the layer that `views` pairs with its layer.
        options: The weights and temperatures. A loss with the weight 0 is not computed.

    Returns:
        A scalar tensor; 0 if all weights are 0.
    """
    total = views.queries(size).new_zeros(())
    if options.contrastive_weight:
        scores, excluded = views.contrast(size)
        contrastive = info_nce(scores, views.batch.targets, options.temperature, excluded)
        total = total + options.contrastive_weight * contrastive
    if options.binary_weight:
        scores = views.binary_scores(size)
        binary = info_nce(scores, views.batch.targets, options.temperature, views.excluded)
        total = total + options.binary_weight * binary
    if not (options.angle_weight or options.cosent_weight):
        return total
    return total + pair_losses(views, size, options.angle_weight, options.cosent_weight, options.pair_temperature)


def distil(views: BatchViews, sizes: Iterable[Size], options: Options) -> Loss:
    """Return distil_weight times the mean over sizes of KL(teacher's scores ‖ ours) over each query's own group.

    Source: the released fine-tuning code of RetroMAE, which has this term for the full size alone.

    Args:
        views: The batch, with a teacher's scores.
        sizes: The sizes that learn from the teacher.
        options: The method's options, of which those that begin with `distil` and the temperature are read.
    """
    teacher, columns = views.batch.teacher, views.batch.group_columns
    assert teacher is not None
    sizes = tuple(sizes)
    total, parts = views.queries(sizes[0]).new_zeros(()), {}
    for size in sizes:
        kl = kl_rows(teacher / options.distil_temperature, views.scores(size).gather(1, columns) / options.temperature)
        if options.distil_reduction == "mean":
            kl = kl / columns.shape[1]
        total = total + options.distil_weight * kl / len(sizes)
        parts[f"distil/{size}"] = kl.detach()
    return Loss(total, parts)
