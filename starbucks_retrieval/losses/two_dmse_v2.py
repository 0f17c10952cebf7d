"""2D Matryoshka training, second version (ESE): every layer at small dims, weighted by depth, aligned with a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, check_temperatures, size_loss
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.losses.functional import kl_rows, pca_target, score_kl
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class TwoDMSEv2Options(Options):
    """Options of 2DMSE v2, besides those of every method: the equations and the two released codes differ in them.

    The defaults are those of eq. 12.

    Args:
        layers: The layers below the last to train; None: all; 0 is the output of the embedding layer.
        dims: The small dims to train; None: a sixth of the width (128 of 768).
        weigh_by: i in a layer's weight 1/(1 + ln i) is its number, or its position in `layers`.
        average: Divide the losses of the layers below the last by their number.
        align: "pca" aligns all texts with their PCA target; "pca-by-side" does so for queries and for passages, each
            divided by its number of rows once more; "score" aligns scores with those at the full width.
        align_with_last: With "score", the teacher is the last layer instead of the same layer.
        full_dim: Train the full width of every layer too.
        full_loss: Train the full size.
        kl_temperature: Divides the logits of the KL with the PCA target and multiplies the KL; None: `temperature`.
        pca: Exact or randomised decomposition; see `pca_target`.
        pca_sign: Fix the signs of the singular vectors ("canonical"), or leave them ("free").
    """

    layers: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    weigh_by: Literal["layer", "position"] = "layer"
    average: bool = False
    align: Literal["pca", "pca-by-side", "score", "none"] = "pca"
    align_with_last: bool = False
    full_dim: bool = False
    full_loss: bool = True
    kl_temperature: float | None = 1.0
    pca: Literal["exact", "lowrank"] = "exact"
    pca_sign: Literal["canonical", "free"] = "canonical"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperatures(self.kl_temperature)
        if self.align_with_last and self.align != "score":
            raise UserError("--compare_to_last_layer compares scores", "add --score_align true")

    @property
    def by_query(self) -> bool:
        """As in `Options`; the alignment is not a mean over queries."""
        return super().by_query and (self.align == "none" or self.kl_weight == 0)


_NLI: dict[str, Any] = {
    "temperature": 0.05,
    "normalize": True,
    "contrastive_weight": 30.0,
    "angle_weight": 1.0,
    "pair_temperature": 0.05,
}

VARIANTS: dict[str, TwoDMSEv2Options] = {
    # arXiv 2411.17299, eq. 12
    "eq12": TwoDMSEv2Options(),
    # AnglE's code: embedding output and layers 1..N-2 instead of 1..N-1, averaged; a new random target in every call
    "angle": TwoDMSEv2Options(average=True, weigh_by="position", pca="lowrank", pca_sign="free", **_NLI),
    # The retrieval code of arXiv 2411.17299, and its variants of section 4.4
    "retrieval": TwoDMSEv2Options(align="pca-by-side", weigh_by="position", pca="lowrank", pca_sign="free"),
    "retrieval-score": TwoDMSEv2Options(align="score", weigh_by="position"),
}


class TwoDMSEv2(Objective[TwoDMSEv2Options]):
    """L = Σ_i w_i [CE(i, k) + align(i, k)] + CE(N, D), with w_i = 1/(1 + ln i) below the last layer and 1 at it.

    k are the small dims, N the last layer, D the full width.
    Source: arXiv 2411.17299, eq. 8-12, and its retrieval variants of section 4.4.

    Raises:
        UserError: A layer is not below the last, or a dim is beyond the full width.

    Example:
        >>> import torch
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> loss = TwoDMSEv2(Sizes.parse("2:4"), Size(2, 4), TwoDMSEv2Options(dims=(2,), align="none"))
        >>> rows = {layer: torch.zeros(2, 4) for layer in (1, 2)}
        >>> loss(Batch(rows, rows)).total  # three times log 2
        tensor(2.0794)
    """

    def __init__(self, sizes: Sizes, full: Size, options: TwoDMSEv2Options) -> None:
        super().__init__(sizes, full, options)
        last = full.layer
        skipped = options.average and options.layers is None  # as AnglE's loop over hidden states
        default = range(last - 1) if skipped else range(1, last)
        self._below = tuple(sorted(set(default if options.layers is None else options.layers) - {last}))
        if self._below and not 0 <= self._below[0] <= self._below[-1] < last:
            raise UserError(f"layers {list(self._below)} are not those below {last}", "see --train_layers")
        self._dims = tuple(sorted(set(options.dims or (max(2, 2 * round(full.dim / 12)),))))
        if not 0 < self._dims[0] <= self._dims[-1] <= full.dim:
            raise UserError(f"dims {list(self._dims)} do not fit a backbone {full.dim} wide", "see --train_dims")
        self.check_dims(self._dims)

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """Return every layer at the small dims, and the full size."""
        return (*(Size(n, d) for n in (*self._below, self.full.layer) for d in self._dims), self.full)

    def layer_weight(self, layer: int, position: int) -> float:
        """Return the weight of a layer; `position` is its position in the list of layers, from 1."""
        if layer == self.full.layer:
            return 1.0
        return 1 / (1 + math.log(layer if self.options.weigh_by == "layer" else position))

    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the weighted losses of all layers and the loss of the full size.

        Returns:
            The total, and parts `ce/<layer>:<dim>`, `align/<layer>` unless `align` is "none", and
            `ce/<full size>` with `full_loss`.
        """
        options, last = self.options, self.full.layer
        parts: dict[str, Tensor] = {}
        below = last_total = views.queries(self.full).new_zeros(())
        for position, layer in enumerate((*self._below, last), 1):
            term = self._layer(views, layer, parts)
            if layer == last:
                last_total = term
                continue
            if options.full_dim:
                term = term + size_loss(views, Size(layer, self.full.dim), options)
            below = below + self.layer_weight(layer, position) * term
        if options.average and self._below:
            below = below / len(self._below)
        total = below + last_total
        if options.full_loss:
            ce = size_loss(views, self.full, options)
            total = total + ce
            parts[f"ce/{self.full}"] = ce.detach()
        return Loss(total, parts)

    def _layer(self, views: BatchViews, layer: int, parts: dict[str, Tensor]) -> Tensor:
        options = self.options
        total = views.queries(self.full).new_zeros(())
        for dim in self._dims:
            ce = size_loss(views, Size(layer, dim), options)
            total = total + ce
            parts[f"ce/{layer}:{dim}"] = ce.detach()
        if options.align == "none" or options.kl_weight == 0:
            return total
        align = self._score_alignment(views, layer) if options.align == "score" else self._pca(views, layer)
        parts[f"align/{layer}"] = align.detach()
        return total + options.kl_weight * align

    def _score_alignment(self, views: BatchViews, layer: int) -> Tensor:
        temperature = self.options.temperature
        source = self.full if self.options.align_with_last else Size(layer, self.full.dim)
        teacher = views.scores(source).detach()
        total = teacher.new_zeros(())
        for dim in self._dims:
            student = views.scores(Size(layer, dim))
            # As the published code has it: the temperature divides what the KL compares, and not the distance.
            distance = (student - teacher).square().mean()
            kl = score_kl(teacher, student, temperature, views.excluded)
            total = total + (distance + kl) / teacher.numel()
        return total

    def _pca(self, views: BatchViews, layer: int) -> Tensor:
        wide = Size(layer, self.full.dim)
        if self.options.align == "pca":
            return self._towards_target(views.texts(wide))
        queries, passages = views.queries(wide), views.passages(wide)
        total = self._towards_target(queries) / len(queries)
        # Passages taken from one layer alone are aligned there, once.
        if views.passage_layer(layer) == layer:
            total = total + self._towards_target(passages) / len(passages)
        return total

    def _towards_target(self, texts: Tensor) -> Tensor:
        options = self.options
        temperature = options.kl_temperature or options.temperature
        target = pca_target(texts, self._dims[-1], options.pca, options.pca_sign == "canonical")
        total = texts.new_zeros(())
        for dim in self._dims:
            x, t = texts[:, :dim], target[:, :dim]
            # The published code's direction; eq. 10 prints it the other way round.
            total = total + (x - t).square().mean() + kl_rows(t / temperature, x / temperature) * temperature
        return total


METHOD = Method(TwoDMSEv2, VARIANTS, "2D Matryoshka training, second version (arXiv 2411.17299)")
