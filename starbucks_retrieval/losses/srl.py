"""Starbucks Representation Learning: a contrastive loss at every size, each aligned with the full one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, check_temperatures, size_loss
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.losses.functional import score_kl
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class SRLOptions(Options):
    """Options of SRL, besides those of every method: the paper and the two released codes differ in them.

    The defaults are the paper's.

    Args:
        reduction: Average or sum the losses of the sizes.
        kl_temperature: Divides the logits that the KL compares; None: `temperature`.
        kl_rescale: Multiply each KL by kl_temperature².
        kl_multiplier: Multiplies every KL, besides kl_weight.
        kl_space: "scores" compares distributions over the passages, "coords" softmaxes over the coordinates of
            embeddings that are not normalised.
        kl_teacher: "full" is the full size, "same_dim" the deepest layer cut to the student's dim.
        detach_teacher: No gradient flows into the teacher from the KL.
        size_weights: Weights of the contrastive terms, one per size.
        sampled: Each step takes the deepest layer and one other layer, both at every dim of the sizes.
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
        check_temperatures(self.kl_temperature)
        if self.kl_teacher == "same_dim" and self.kl_space == "scores":
            raise UserError("--kl_teacher same_dim compares coordinates", "add --kl_space coords")
        if self.kl_space == "coords" and self.kl_teacher == "full":
            raise UserError("coordinates of different dims cannot be compared", "add --kl_teacher same_dim")
        if self.sampled and self.size_weights is not None:
            problem = "size weights belong to the model's sizes, and sampling takes other sizes"
            raise UserError(problem, "drop one of the two")

    @property
    def by_query(self) -> bool:
        """As in `Options`; a KL over coordinates is not a mean over queries."""
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

    Source: Starbucks (arXiv 2410.13230), eq. 4-5; `sampled`: the released code's sub_model_sampling.

    Raises:
        UserError: The sizes lack their full size, which is the teacher.

    Example:
        >>> import torch
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> rows = {layer: torch.zeros(2, 4) for layer in (1, 2)}
        >>> result = SRL(Sizes.parse("1:2,2:4"), Size(2, 4), SRLOptions())(Batch(rows, rows))
        >>> result.total, sorted(result.parts)
        (tensor(0.6931), ['ce/1:2', 'ce/2:4', 'kl/1:2'])
    """

    def __init__(self, sizes: Sizes, full: Size, options: SRLOptions) -> None:
        super().__init__(sizes, full, options)
        self.largest = sizes.full
        if self.largest not in sizes.members:
            problem = f"the sizes {sizes} lack their full size {self.largest}, the teacher"
            raise UserError(problem, f"add {self.largest}")
        if options.size_weights is not None and len(options.size_weights) != len(sizes):
            raise UserError(f"{len(options.size_weights)} size weights for {len(sizes)} sizes", "give one per size")
        self.check_dims(size.dim for size in sizes)
        if options.sampled and len(sizes.layers) < 2:
            raise UserError(f"the sizes {sizes} have no second layer to sample", "name sizes of several layers")

    def draw(self, rng: np.random.Generator) -> Sizes:
        """Return the sizes of one step."""
        if not self.options.sampled:
            return self.sizes
        return self.sampled(int(rng.choice(self.sizes.layers[:-1])))

    def sampled(self, layer: int) -> Sizes:
        """Return every dim of the sizes at `layer` and at the deepest layer."""
        dims = sorted({size.dim for size in self.sizes})
        return Sizes([Size(n, dim) for n in (layer, self.largest.layer) for dim in dims])

    def visited(self, drawn: Sizes | None) -> tuple[Size, ...]:
        """Return the sizes of one step."""
        return (drawn or self.sizes).members

    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the contrastive losses of the step's sizes and the KL of each with its teacher.

        Returns:
            The total, and parts `ce/<size>`, and `kl/<size>` for all but the largest size where `kl_weight` is not 0.
        """
        options, sizes = self.options, self.visited(drawn)
        parts: dict[str, Tensor] = {}
        total = views.queries(self.largest).new_zeros(())
        for size, weight in zip(sizes, options.size_weights or (1.0,) * len(sizes)):
            ce = size_loss(views, size, options)
            total = total + weight * ce
            parts[f"ce/{size}"] = ce.detach()
            if size != self.largest and options.kl_weight > 0:
                kl = self._alignment(views, size)
                total = total + options.kl_weight * options.kl_multiplier * kl
                parts[f"kl/{size}"] = kl.detach()
        return Loss(total / len(sizes) if options.reduction == "mean" else total, parts)

    def _alignment(self, views: BatchViews, size: Size) -> Tensor:
        options = self.options
        temperature = options.kl_temperature or options.temperature
        if options.kl_space == "coords":
            same_dim = Size(self.largest.layer, size.dim)
            teacher, student, excluded = views.texts(same_dim), views.texts(size), None
        else:
            teacher, student, excluded = views.scores(self.largest), views.scores(size), views.excluded
        kl = score_kl(teacher.detach() if options.detach_teacher else teacher, student, temperature, excluded)
        return kl * temperature**2 if options.kl_rescale else kl


METHOD = Method(SRL, VARIANTS, "Starbucks Representation Learning (arXiv 2410.13230)")
