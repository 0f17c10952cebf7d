"""What the published pre-training methods do differently, as options; contradictions are refused here."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes


@dataclass(frozen=True)
class PretrainOptions:
    """The loss of pre-training. The defaults are those of Starbucks' masked auto-encoding (SMAE).

    sizes: visit every rung of the ladder, or the backbone's full size alone.
    mae: add the decoder's loss to the encoder's. loss_scale: their sum (the paper), or half of it (the released code).
    projection: what a state cut to its first d numbers meets. transform: the dense layer of the language-modelling head
    restricted to its first d inputs, with its bias, activation and norm (the released code); linear: the dense layer's
    first d inputs alone (eq. 7); identity: the decoder is given the state itself (RetroMAE), for full-width sizes only.
    What a decoder returns always meets the whole head.
    decoder basic: the masked text through decoder_layers transformer layers. enhanced: every token is predicted from its
    own random part of the text (RetroMAE). decoder_init first: copies of the backbone's first layers; or random.
    decoder_token_fraction: how many of the decoder's targets a size meets, drawn anew for every size and step.
    contrastive_weight weighs InfoNCE between two spans of each document (a second stage of
    arXiv 2208.00231).
    size_batch: how many sizes the decoder runs at once; None means all.
    """

    sizes: Literal["ladder", "full"] = "ladder"
    mae: bool = True
    loss_scale: Literal["sum", "half"] = "sum"
    projection: Literal["transform", "linear", "identity"] = "transform"
    decoder: Literal["basic", "enhanced"] = "basic"
    decoder_layers: int = 1
    decoder_init: Literal["first", "random"] = "first"
    decoder_token_fraction: float = 1.0
    contrastive_weight: float = 0.0
    contrastive_temperature: float = 1.0
    contrastive_normalize: bool = False
    size_batch: int | None = None

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is Literal and getattr(self, name) not in typing.get_args(hint):
                choices = ", ".join(typing.get_args(hint))
                raise UserError(f"{name} cannot be {getattr(self, name)!r}", f"take one of {choices}")
        if self.decoder_layers < 1:
            raise UserError(f"a decoder of {self.decoder_layers} layers", "take at least one layer, or mae false")
        if self.decoder == "enhanced" and self.decoder_layers > 1:
            raise UserError(
                "a second layer of enhanced decoding would show every token its own answer", "set decoder_layers to 1"
            )
        if not 0 < self.decoder_token_fraction <= 1:
            raise UserError(f"decoder_token_fraction {self.decoder_token_fraction}", "take more than 0, at most 1")
        if self.size_batch is not None and self.size_batch < 1:
            raise UserError(f"size_batch {self.size_batch} runs no size", "take at least 1")
        if not self.contrastive_temperature > 0:
            raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")
        if self.contrastive_weight < 0:
            raise UserError(f"contrastive_weight {self.contrastive_weight} is negative", "0 switches the term off")
        if not self.mae:
            self._check_without_decoder()

    def _check_without_decoder(self) -> None:
        if self.decoder == "enhanced" or self.decoder_layers > 1 or self.decoder_token_fraction < 1:
            raise UserError("options of the decoder, but mae false leaves it out", "drop them, or set mae true")
        if self.projection == "identity":
            raise UserError("projection identity is what a decoder is given, but there is none", "take transform")


PRESETS: dict[str, PretrainOptions] = {
    # arXiv 2410.13230, eq. 6-9
    "starbucks": PretrainOptions(),
    # Its released code takes half of every size's loss.
    "starbucks-released": PretrainOptions(loss_scale="half"),
    # Table 3's ablations: without the decoder, and without the sizes too
    "mlm-sizes": PretrainOptions(mae=False),
    "mlm": PretrainOptions(sizes="full", mae=False),
    # arXiv 2205.12035: enhanced decoding, and the paper's simpler variant
    "retromae": PretrainOptions(sizes="full", projection="identity", decoder="enhanced", decoder_init="random"),
    "retromae-basic": PretrainOptions(sizes="full", projection="identity", decoder_init="random"),
    # Enhanced decoding from every size
    "smae-enhanced": PretrainOptions(decoder="enhanced"),
}


def visited_sizes(options: PretrainOptions, sizes: Sizes, num_layers: int, hidden_size: int) -> Sizes:
    """The sizes that the loss is taken at. Raises UserError where they do not fit the backbone or the options."""
    if options.sizes == "full":
        return Sizes([Size(num_layers, hidden_size)])
    sizes.check(num_layers, hidden_size)
    narrow = [size for size in sizes if size.dim < hidden_size]
    if narrow and options.projection == "identity":
        raise UserError(
            f"projection identity gives the decoder {hidden_size} numbers, and size {narrow[0]} has {narrow[0].dim}",
            "take projection transform, or sizes of full width only",
        )
    return sizes
