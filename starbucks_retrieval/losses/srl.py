"""Starbucks Representation Learning: a contrastive loss at every size of a ladder, each size aligned with the full one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.alignment import coordinate_kl, score_kl
from starbucks_retrieval.losses.base import Method, Objective, Options, size_loss
from starbucks_retrieval.losses.batch import Loss, Views
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class SRLOptions(Options):
    """What the paper and the two released codes do differently. The defaults are the paper's.

    kl_temperature divides what the KL compares (None: the temperature). kl_rescale multiplies each KL by
    kl_temperature². kl_multiplier multiplies every KL besides kl_weight.
    kl_space scores: distributions over the passages; coords: softmax over the coordinates of raw embeddings.
    kl_teacher full: the full size; same_dim: the deepest layer cut to the student's dim.
    size_weights multiply the contrastive terms, rung by rung. sampled: each step takes the deepest layer and one other,
    at every dim of the ladder.
    """

    reduction: Literal["mean", "sum"] = "mean"
    kl_temperature: float | None = None
    kl_rescale: bool = False
    kl_multiplier: float = 1.0
    kl_space: Literal["scores", "coords"] = "scores"
    kl_teacher: Literal["full", "same_dim"] = "full"
    detach_teacher: bool = True
    size_weights: tuple[float, ...] | None = None
    sampled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.kl_temperature is None or self.kl_temperature > 0):
            raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")
        if self.kl_teacher == "same_dim" and self.kl_space == "scores":
            raise UserError("--kl_teacher same_dim compares coordinates", "add --kl_space coords")
        if self.kl_space == "coords" and self.kl_teacher == "full":
            raise UserError("coordinates of different dims cannot be compared", "add --kl_teacher same_dim")
        if self.sampled and self.size_weights is not None:
            raise UserError("size weights name rungs, and sampling leaves the ladder", "drop one of the two")

    @property
    def by_query(self) -> bool:
        return super().by_query and (self.kl_space == "scores" or self.kl_weight == 0)


VARIANTS: dict[str, SRLOptions] = {
    # arXiv 2410.13230, eq. 4-5 and Table 6
    "starbucks": SRLOptions(),
    # The released retrieval code adds the sizes up instead of averaging them.
    "starbucks-released": SRLOptions(reduction="sum"),
    # Its option sub_model_sampling.
    "starbucks-sampled": SRLOptions(reduction="sum", sampled=True),
    # The released STS code: other KL, teacher with gradient, "kl_temperature" as a plain factor.
    "starbucks-sts-released": SRLOptions(
        temperature=0.05,
        normalize=True,
        reduction="sum",
        kl_temperature=1.0,
        kl_multiplier=0.3,
        kl_space="coords",
        kl_teacher="same_dim",
        detach_teacher=False,
    ),
}


class SRL(Objective[SRLOptions]):
    """L = Σ w CE + λ Σ KL(full ‖ size), divided by the number of sizes when reduction is "mean".

    Raises UserError when the ladder lacks its full size, which is the teacher.
    Source: Starbucks (arXiv 2410.13230), eq. 4-5; `sampled`: the released code's sub_model_sampling.
    """

    def __init__(self, sizes: Sizes, full: Size, options: SRLOptions) -> None:
        super().__init__(sizes, full, options)
        self.top = sizes.full
        if self.top not in sizes.members:
            raise UserError(f"the ladder {sizes} lacks its full size {self.top}, the teacher", f"add {self.top}")
        if options.size_weights is not None and len(options.size_weights) != len(sizes):
            raise UserError(f"{len(options.size_weights)} size weights for {len(sizes)} sizes", "give one per size")
        self.check_dims(size.dim for size in sizes)
        if options.sampled and len(sizes.layers) < 2:
            raise UserError(f"the ladder {sizes} has no second layer to sample", "name sizes of several layers")

    def draw(self, rng: np.random.Generator) -> Sizes:
        """The sizes of one step."""
        if not self.options.sampled:
            return self.sizes
        return self.sampled(int(rng.choice(self.sizes.layers[:-1])))

    def sampled(self, layer: int) -> Sizes:
        """Every dim of the ladder at `layer` and at the deepest layer."""
        dims = sorted({size.dim for size in self.sizes})
        return Sizes([Size(n, dim) for n in (layer, self.top.layer) for dim in dims])

    def visited(self, drawn: Sizes | None) -> tuple[Size, ...]:
        """The sizes of one step."""
        return (drawn or self.sizes).members

    def loss(self, views: Views, drawn: Any) -> Loss:
        """See the class."""
        options, sizes = self.options, self.visited(drawn)
        parts: dict[str, Tensor] = {}
        total = views.queries(self.top).new_zeros(())
        for size, weight in zip(sizes, options.size_weights or (1.0,) * len(sizes)):
            ce = size_loss(views, size, options)
            total = total + weight * ce
            parts[f"ce/{size}"] = ce.detach()
            if size != self.top and options.kl_weight > 0:
                kl = self._alignment(views, size)
                total = total + options.kl_weight * options.kl_multiplier * kl
                parts[f"kl/{size}"] = kl.detach()
        return Loss(total / len(sizes) if options.reduction == "mean" else total, parts)

    def _alignment(self, views: Views, size: Size) -> Tensor:
        options = self.options
        temperature = options.kl_temperature or options.temperature
        if options.kl_space == "coords":
            teacher, student = views.texts(Size(self.top.layer, size.dim)), views.texts(size)
            kl = coordinate_kl(teacher.detach() if options.detach_teacher else teacher, student, temperature)
        else:
            teacher, student = views.scores(self.top), views.scores(size)
            teacher = teacher.detach() if options.detach_teacher else teacher
            kl = score_kl(teacher, student, temperature, views.excluded)
        return kl * temperature**2 if options.kl_rescale else kl


METHOD = Method(SRL, VARIANTS, "Starbucks Representation Learning (arXiv 2410.13230)")
