"""Matryoshka Representation Learning: the last layer alone, at several dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, size_loss
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class MRLOptions(Options):
    """Options of MRL, besides those of every method.

    Args:
        dims: The dims to train; None: those of the model's sizes, and the full width.
        reduction: Sum or average the losses of the dims.
    """

    dims: tuple[int, ...] | None = None
    reduction: Literal["mean", "sum"] = "sum"


VARIANTS: dict[str, MRLOptions] = {"mrl": MRLOptions()}


class MRL(Objective[MRLOptions]):
    """L = Σ CE(N, d) over the dims d, at the last layer N.

    Source: arXiv 2205.13147, in the form of arXiv 2411.17299, eq. 1-3.

    Example:
        >>> import torch
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> loss = MRL(Sizes.parse("2:2,2:4"), Size(2, 4), MRLOptions())
        >>> result = loss(Batch({2: torch.zeros(2, 4)}, {2: torch.zeros(2, 4)}))
        >>> result.total, sorted(result.parts)  # log 2 at each dim
        (tensor(1.3863), ['ce/2:2', 'ce/2:4'])
    """

    def __init__(self, sizes: Sizes, full: Size, options: MRLOptions) -> None:
        super().__init__(sizes, full, options)
        dims = {*options.dims} if options.dims else {full.dim, *(size.dim for size in sizes)}
        if max(dims) > full.dim:
            raise UserError(f"dim {max(dims)} is beyond the backbone's {full.dim}", "take smaller --train_dims")
        self.check_dims(dims)
        self._sizes = tuple(Size(full.layer, dim) for dim in sorted(dims))

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """Return the last layer at every dim."""
        return self._sizes

    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the sum or the mean of the losses of the dims.

        Returns:
            The total, and parts `ce/<size>` for each dim.
        """
        parts: dict[str, Tensor] = {}
        total = views.queries(self._sizes[0]).new_zeros(())
        for size in self._sizes:
            ce = size_loss(views, size, self.options)
            total = total + ce
            parts[f"ce/{size}"] = ce.detach()
        return Loss(total / len(self._sizes) if self.options.reduction == "mean" else total, parts)


METHOD = Method(MRL, VARIANTS, "Matryoshka Representation Learning (arXiv 2205.13147)")
