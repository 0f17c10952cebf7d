"""A contrastive loss at one size alone: a separately trained model of a size, and the plain full model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, size_loss
from starbucks_retrieval.losses.batch import BatchViews, Loss
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class SingleSizeOptions(Options):
    """Options of a loss at one size, besides those of every method.

    Args:
        train_dim: Take the loss at the size's own dim; if False, at the full width of its layer, and cut it only in
            evaluation.
    """

    train_dim: bool = True


VARIANTS: dict[str, SingleSizeOptions] = {
    # arXiv 2411.17299: trained at its own (n, d)
    "separate": SingleSizeOptions(),
    # The released STS baselines never use d in their loss.
    "separate-sts-released": SingleSizeOptions(temperature=0.05, normalize=True, train_dim=False),
}


class SingleSize(Objective[SingleSizeOptions]):
    """L = CE(n, d) at the one size that the model stores.

    Source: the separately trained baselines of arXiv 2411.17299 and arXiv 2410.13230.

    Example:
        >>> import torch
        >>> from starbucks_retrieval.losses.batch import Batch
        >>> loss = SingleSize(Sizes.parse("1:2"), Size(2, 4), SingleSizeOptions())
        >>> loss.largest, loss(Batch({1: torch.zeros(2, 4)}, {1: torch.zeros(2, 4)})).total
        (Size(layer=1, dim=2), tensor(0.6931))
    """

    def __init__(self, sizes: Sizes, full: Size, options: SingleSizeOptions) -> None:
        super().__init__(sizes, full, options)
        if len(sizes) != 1:
            raise UserError(f"--objective separate trains one size, not {sizes}", "name it: --sizes 6:128")
        self.largest = Size(sizes[0].layer, sizes[0].dim if options.train_dim else full.dim)
        self.check_dims([self.largest.dim])

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """Return the one size."""
        return (self.largest,)

    def loss(self, views: BatchViews, drawn: Any) -> Loss:
        """Return the loss of the one size."""
        ce = size_loss(views, self.largest, self.options)
        return Loss(ce, {f"ce/{self.largest}": ce.detach()})


SEPARATE = Method(SingleSize, VARIANTS, "a contrastive loss at this size alone")
FULL = Method(SingleSize, {"full": SingleSizeOptions()}, "a contrastive loss at its full size")
