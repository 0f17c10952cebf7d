"""One size alone: the plain full model, and the separately trained model of each size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.base import Method, Objective, Options, size_loss
from starbucks_retrieval.losses.batch import Loss, Views
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class SingleOptions(Options):
    """train_dim False takes the loss at the full width of the size's layer, and leaves its dim to evaluation."""

    train_dim: bool = True


VARIANTS: dict[str, SingleOptions] = {
    # arXiv 2411.17299: trained at its own (n, d)
    "separate": SingleOptions(),
    # The released STS baselines never use d in their loss.
    "separate-sts-released": SingleOptions(temperature=0.05, normalize=True, train_dim=False),
}


class Single(Objective[SingleOptions]):
    """L = CE(n, d), for a ladder of one size."""

    def __init__(self, sizes: Sizes, full: Size, options: SingleOptions) -> None:
        super().__init__(sizes, full, options)
        if len(sizes) != 1:
            raise UserError(f"--objective separate trains one size, not {sizes}", "name it: --sizes 6:128")
        self.check_dims([sizes[0].dim if options.train_dim else full.dim])
        self.top = Size(sizes[0].layer, sizes[0].dim if options.train_dim else full.dim)

    def visited(self, drawn: Any) -> tuple[Size, ...]:
        """The one size."""
        return (self.top,)

    def loss(self, views: Views, drawn: Any) -> Loss:
        """See the class."""
        ce = size_loss(views, self.top, self.options)
        return Loss(ce, {f"ce/{self.top}": ce.detach()})


SEPARATE = Method(Single, VARIANTS, "a contrastive loss at this size alone")
FULL = Method(Single, {"full": SingleOptions()}, "a contrastive loss at its full size")
