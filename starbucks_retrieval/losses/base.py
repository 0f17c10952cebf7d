"""What all methods share: the loss of one size, its options, and the frame of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.alignment import kl_rows
from starbucks_retrieval.losses.batch import Batch, Loss, Views
from starbucks_retrieval.losses.contrastive import info_nce
from starbucks_retrieval.losses.pairs import pair_losses
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class Options:
    """The loss of one size, the same in every method.

    temperature divides scores in the contrastive loss (InfoNCE; over cosines it is multiple-negatives ranking).
    angle_weight and cosent_weight add losses over pairs with labels, at pair_temperature. in_batch False restricts each
    query to its own group. passage_layers ((query layer, passage layer), …) scores queries against passages of another
    depth. kl_weight weighs a method's alignment of small with full. distil_weight adds, at every size, the KL of another
    model's scores of a query's own group over distil_temperature from ours, averaged over queries ("batchmean") or
    over queries and passages ("mean", as RetroMAE's code).
    """

    temperature: float = 1.0
    normalize: bool = False
    in_batch: bool = True
    contrastive_weight: float = 1.0
    angle_weight: float = 0.0
    cosent_weight: float = 0.0
    pair_temperature: float = 0.05
    passage_layers: tuple[tuple[int, int], ...] = ()
    kl_weight: float = 1.0
    distil_weight: float = 0.0
    distil_temperature: float = 1.0
    distil_reduction: Literal["batchmean", "mean"] = "batchmean"

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.pair_temperature > 0 and self.distil_temperature > 0):
            raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")
        for name in ("kl_weight", "contrastive_weight", "angle_weight", "cosent_weight", "distil_weight"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} {getattr(self, name)} is negative", "0 switches the term off")
        if not (self.contrastive_weight or self.angle_weight or self.cosent_weight or self.distil_weight):
            raise UserError("every loss has the weight 0", "give one of them a weight")
        if self.cosent_weight and not self.normalize:
            raise UserError("CoSENT compares cosines", "add --normalize true")

    @property
    def by_query(self) -> bool:
        """Whether the loss is a mean over queries of terms that need one query and all passages."""
        return not (self.angle_weight or self.cosent_weight)


T = TypeVar("T", bound=Options)


class Objective(ABC, Generic[T]):
    """A training method: which sizes a step visits, and the loss over them.

    sizes is the ladder that the model stores; `full` the backbone's own size; `top` the largest that every step visits.
    Raises UserError when they do not fit the method.
    """

    def __init__(self, sizes: Sizes, full: Size, options: T) -> None:
        self.sizes = sizes
        self.full = full
        self.top = full
        self.options = options

    def check_dims(self, dims: Iterable[int]) -> None:
        """Raise UserError for a dim that the options cannot be applied to."""
        odd = [dim for dim in dims if dim % 2]
        if odd and self.options.angle_weight:
            raise UserError(f"the angle loss halves its vectors, and {odd[0]} is odd", "use even dims only")

    def draw(self, rng: np.random.Generator) -> Any:
        """What one step visits, where a method samples; every process draws the same from the same generator."""
        return None

    @abstractmethod
    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """The sizes that a step's contrastive losses are taken at."""

    @abstractmethod
    def loss(self, views: Views, drawn: Any) -> Loss:
        """The method's own loss."""

    @property
    def depth(self) -> int:
        """The deepest layer that any text runs through."""
        return max(self.top.layer, *(layer for _, layer in self.options.passage_layers), 0)

    def layers(self, drawn: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The layers to tap for queries and for passages in a step."""
        layers = {size.layer for size in self.visited(drawn)}
        paired = dict(self.options.passage_layers)
        return tuple(sorted(layers)), tuple(sorted({paired.get(layer, layer) for layer in layers}))

    def __call__(self, batch: Batch, drawn: Any = None) -> Loss:
        """The loss of one batch and its parts."""
        options = self.options
        views = Views(batch, options.normalize, options.in_batch, dict(options.passage_layers))
        loss = self.loss(views, drawn)
        if options.distil_weight == 0:
            return loss
        distilled = distil(views, self.visited(drawn), options)
        return Loss(loss.total + distilled.total, loss.parts | distilled.parts)


class Method(NamedTuple):
    """A registered training method.

    Args:
        objective: Its class; called as `objective(sizes, full, options)`.
        variants: Its published versions, name → options; the first is the default.
        title: Its name in model cards: "A text encoder trained with <title>".
    """

    objective: type[Objective]
    variants: Mapping[str, Options]
    title: str


def size_loss(views: Views, size: Size, options: Options) -> Tensor:
    """The weighted losses of one size."""
    total = views.queries(size).new_zeros(())
    if options.contrastive_weight:
        scores = views.scores(size)
        contrastive = info_nce(scores, views.batch.targets, options.temperature, views.excluded)
        total = total + options.contrastive_weight * contrastive
    if not (options.angle_weight or options.cosent_weight):
        return total
    return total + pair_losses(views, size, options.angle_weight, options.cosent_weight, options.pair_temperature)


def distil(views: Views, sizes: Iterable[Size], options: Options) -> Loss:
    """distil_weight times the mean over sizes of KL(teacher's scores ‖ ours) over each query's own group.

    Source: the released fine-tuning code of RetroMAE, which has it for the full size alone.
    """
    teacher, own = views.batch.teacher, views.batch.own
    assert teacher is not None
    sizes = tuple(sizes)
    total, parts = views.queries(sizes[0]).new_zeros(()), {}
    for size in sizes:
        kl = kl_rows(teacher / options.distil_temperature, views.scores(size).gather(1, own) / options.temperature)
        if options.distil_reduction == "mean":
            kl = kl / own.shape[1]
        total = total + options.distil_weight * kl / len(sizes)
        parts[f"distil/{size}"] = kl.detach()
    return Loss(total, parts)
