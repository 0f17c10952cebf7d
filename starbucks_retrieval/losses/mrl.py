"""Matryoshka Representation Learning: the last layer alone, at several dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, size_loss
from starbucks_retrieval.losses.batch import Loss, Views
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class MRLOptions(Options):
    """dims: those trained (None: the ladder's, and the full width)."""

    dims: tuple[int, ...] | None = None
    reduction: Literal["mean", "sum"] = "sum"


VARIANTS: dict[str, MRLOptions] = {"mrl": MRLOptions()}


class MRL(Objective[MRLOptions]):
    """L = Σ CE(N, d) over the dims. Source: arXiv 2205.13147, in the form of arXiv 2411.17299, eq. 1-3."""

    def __init__(self, sizes: Sizes, full: Size, options: MRLOptions) -> None:
        super().__init__(sizes, full, options)
        dims = {*options.dims} if options.dims else {full.dim, *(size.dim for size in sizes)}
        if max(dims) > full.dim:
            raise UserError(f"dim {max(dims)} is beyond the backbone's {full.dim}", "take smaller --train_dims")
        self.check_dims(dims)
        self._sizes = tuple(Size(full.layer, dim) for dim in sorted(dims))

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """The last layer at every dim."""
        return self._sizes

    def loss(self, views: Views, drawn: Any) -> Loss:
        """See the class."""
        parts: dict[str, Tensor] = {}
        total = views.queries(self._sizes[0]).new_zeros(())
        for size in self._sizes:
            ce = size_loss(views, size, self.options)
            total = total + ce
            parts[f"ce/{size}"] = ce.detach()
        return Loss(total / len(self._sizes) if self.options.reduction == "mean" else total, parts)


METHOD = Method(MRL, VARIANTS, "Matryoshka Representation Learning (arXiv 2205.13147)")
