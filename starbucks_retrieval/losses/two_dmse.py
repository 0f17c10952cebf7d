"""2D Matryoshka training, first version: the full size and one sampled size a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, check_temperatures, size_loss
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.losses.functional import score_kl
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class TwoDMSEOptions(Options):
    """Options of 2DMSE, besides those of every method: the published codes differ in them.

    The defaults are the first paper's.

    Args:
        layers: The layers to sample from; None: all but the last.
        dims: The dims to sample from; None: 8, 16, 32, … below the width.
        term_weights: λ1 to λ4 of eq. 7, of the losses at (N, D), (n, D), (N, d) and (n, d); λ5 is kl_weight. A term with
            the weight 0 is not computed: [0, 1, 1, 1] is the paper's ablation without L_N^D.
        layer_weight: Weight of the losses of a sampled layer n: 1, "linear" 1/n or "log" 1/(1 + ln n).
        weigh_by: n in that weight is the layer's number, or its position from 1 among the layers to sample from.
        shared_dim: Sample one dim a step for both layers; if False, one for each.
        always_full: Train the full width in every step too; if False, only when it is sampled.
        kl_space: "coords" aligns the coordinates of embeddings, "scores" the scores.
        kl_dims: Align the full width ("full"), or the sampled dim too ("both").
        kl_temperature: Divides the logits that the KL compares; None: `temperature`.
        kl_multiplier: Multiplies the alignment, besides kl_weight.
        detach_teacher: No gradient flows into the last layer from the KL.
    """

    layers: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    term_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    layer_weight: Literal["one", "linear", "log"] = "one"
    weigh_by: Literal["layer", "position"] = "layer"
    shared_dim: bool = True
    always_full: bool = True
    kl_space: Literal["scores", "coords"] = "coords"
    kl_dims: Literal["both", "full"] = "both"
    kl_temperature: float | None = 1.0
    kl_multiplier: float = 1.0
    detach_teacher: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperatures(self.kl_temperature)
        if self.always_full and not self.shared_dim:
            raise UserError("two dims a step belong to losses at these two sizes alone", "add --always_full false")
        weights = self.term_weights
        numbers = all(isinstance(weight, int | float) and 0 <= weight < math.inf for weight in weights)
        if len(weights) != 4 or not numbers or not any(weights):
            raise UserError(
                f"term_weights {list(weights)} are not λ1 to λ4 of 2dmse",
                "give four weights, not all 0, for (N, D), (n, D), (N, d), (n, d): term_weights=[0,1,1,1]",
            )
        if not self.always_full and not any(weights[2:]):
            raise UserError("always_full=false leaves the last two terms, and their term_weights are 0", "raise one")

    @property
    def by_query(self) -> bool:
        """As in `Options`; a KL over coordinates is not a mean over queries."""
        return super().by_query and (self.kl_space == "scores" or self.kl_weight == 0)


VARIANTS: dict[str, TwoDMSEOptions] = {
    # arXiv 2402.14776v1, eq. 2-7
    "v1-paper": TwoDMSEOptions(),
    # Matryoshka2dLoss of sentence-transformers 3.2: the baseline of the Starbucks paper
    "st-3.2": TwoDMSEOptions(
        layer_weight="linear",
        shared_dim=False,
        always_full=False,
        kl_dims="full",
        kl_temperature=0.3,
        kl_multiplier=0.3,
        detach_teacher=False,
    ),
    # AnglE as of 2024-02-23
    "angle-0223": TwoDMSEOptions(kl_dims="full", detach_teacher=False),
    # Dense2DRussianDollModel, the first version in the retrieval code of arXiv 2411.17299
    "russian-doll": TwoDMSEOptions(
        layer_weight="linear", weigh_by="position", kl_temperature=0.3, detach_teacher=False
    ),
}


class Draw(NamedTuple):
    """The sample of one step.

    Attributes:
        layer: A layer below the last.
        last_dim: A dim of the last layer.
        layer_dim: A dim of the sampled layer; equal to `last_dim` with `shared_dim`.
    """

    layer: int
    last_dim: int
    layer_dim: int


class TwoDMSE(Objective[TwoDMSEOptions]):
    """L = λ1 CE(N, D) + λ2 w CE(n, D) + λ3 CE(N, d) + λ4 w CE(n, d) + λ5 KL(last ‖ sampled), (n, d) sampled each step.

    N is the last layer and D the full width. Without `always_full`: λ3 CE(N, d) + λ4 w CE(n, d') + λ5 KL.
    Source: arXiv 2402.14776v1, eq. 2-7; sentence-transformers 3.2.

    Raises:
        UserError: There is no layer below the last to sample, or a dim is beyond the full width.

    Example:
        >>> import torch
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> loss = TwoDMSE(Sizes.parse("2:4"), Size(2, 4), TwoDMSEOptions(dims=(2,)))
        >>> rows = {layer: torch.zeros(2, 4) for layer in (1, 2)}
        >>> loss(Batch(rows, rows), loss.draw(np.random.default_rng(0))).total  # four times log 2
        tensor(2.7726)
    """

    def __init__(self, sizes: Sizes, full: Size, options: TwoDMSEOptions) -> None:
        super().__init__(sizes, full, options)
        self._layers = options.layers or tuple(range(1, full.layer))
        if not self._layers or max(self._layers) >= full.layer or min(self._layers) < 1:
            problem = f"2dmse samples layers from 1 to {full.layer - 1}, not {list(self._layers)}"
            raise UserError(problem, "see --train_layers")
        below = tuple(8 * 2**i for i in range(20) if 8 * 2**i < full.dim)
        default = below if options.always_full else (*(size.dim for size in sizes), full.dim)
        self._dims = tuple(sorted(set(options.dims or default)))
        if not self._dims or self._dims[-1] > full.dim:
            raise UserError(f"2dmse samples dims up to {full.dim}, not {list(self._dims)}", "see --train_dims")
        self.check_dims(self._dims)

    def draw(self, rng: np.random.Generator) -> Draw:
        """Sample a layer and one or two dims uniformly."""
        layer, first, second = int(rng.choice(self._layers)), int(rng.choice(self._dims)), int(rng.choice(self._dims))
        return Draw(layer, first, first if self.options.shared_dim else second)

    @property
    def trained_layers(self) -> tuple[int, ...]:
        """Every layer that a step may sample, and the last one."""
        drawn = (Draw(layer, self.full.dim, self.full.dim) for layer in self._layers)
        return tuple(sorted({layer for one in drawn for side in self.layers(one) for layer in side}))

    def visited(self, drawn: Draw) -> tuple[Size, ...]:
        """Return two sizes, or with `always_full` four."""
        last, layer, dim = self.full.layer, drawn.layer, self.full.dim
        small = (Size(last, drawn.last_dim), Size(layer, drawn.layer_dim))
        # A sampled dim may be the full one: its losses count twice, as in the equation.
        return (Size(last, dim), Size(layer, dim), *small) if self.options.always_full else small

    def loss(self, views: BatchViews, drawn: Draw) -> Loss:
        """Return the contrastive losses of the sampled sizes and the alignment.

        Returns:
            The total, and parts `ce/last` and `ce/sampled` (of two terms of a layer, that at the sampled dim), and
            `kl` where `kl_weight` is not 0.
        """
        options = self.options
        parts: dict[str, Tensor] = {}
        total = views.queries(Size(self.full.layer, 1)).new_zeros(())
        sizes = self.visited(drawn)
        for size, weight in zip(sizes, options.term_weights[-len(sizes) :]):
            if not weight:
                continue
            ce = size_loss(views, size, options)
            total = total + weight * (1.0 if size.layer == self.full.layer else self.layer_weight(size.layer)) * ce
            parts[f"ce/{'last' if size.layer == self.full.layer else 'sampled'}"] = ce.detach()
        if options.kl_weight > 0:
            dims = (self.full.dim, drawn.layer_dim) if options.kl_dims == "both" else (self.full.dim,)
            kl = sum((self._alignment(views, drawn.layer, dim) for dim in dims), total.new_zeros(()))
            total = total + options.kl_weight * options.kl_multiplier * kl
            parts["kl"] = kl.detach()
        return Loss(total, parts)

    def layer_weight(self, layer: int) -> float:
        """Return the weight of the losses of a sampled layer."""
        n = layer if self.options.weigh_by == "layer" else self._layers.index(layer) + 1
        return {"one": 1.0, "linear": 1 / n, "log": 1 / (1 + math.log(n))}[self.options.layer_weight]

    def _alignment(self, views: BatchViews, layer: int, dim: int) -> Tensor:
        options = self.options
        last, sampled = Size(self.full.layer, dim), Size(layer, dim)
        temperature = options.kl_temperature or options.temperature
        if options.kl_space == "coords":
            teacher, student, excluded = views.texts(last), views.texts(sampled), None
        else:
            teacher, student, excluded = views.scores(last), views.scores(sampled), views.excluded
        return score_kl(teacher.detach() if options.detach_teacher else teacher, student, temperature, excluded)


METHOD = Method(TwoDMSE, VARIANTS, "2D Matryoshka training (arXiv 2402.14776v1)")
