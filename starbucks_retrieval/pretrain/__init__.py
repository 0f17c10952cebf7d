"""Pre-training of backbones: masked auto-encoding at every size (SMAE), RetroMAE, and their ablations.

`PRETRAIN_OBJECTIVES` maps each value of `--objective` to a `PretrainObjective`: what a published method does differently,
as options of one loss. The flag's choices and help and the text of the model card come from it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports
from starbucks_retrieval.registry import Registry
from starbucks_retrieval.sizes import Size, Sizes

if TYPE_CHECKING:
    from starbucks_retrieval.pretrain.__main__ import PretrainArguments
    from starbucks_retrieval.pretrain.api import pretrain

__all__ = ["PRETRAIN_OBJECTIVES", "PretrainArguments", "PretrainObjective", "PretrainOptions", "pretrain"]


@dataclass(frozen=True)
class PretrainOptions:
    """The loss of pre-training. The defaults are those of Starbucks masked auto-encoding (SMAE).

    Attributes:
        sizes: all takes the loss at every size of the model; full at the backbone's full size only.
        mae: Whether the decoder's loss is added to the encoder's.
        loss_scale: sum adds the two losses (the paper); half takes half of their sum (the released code).
        projection: Maps a state truncated to its first d numbers to the width of the layers. transform: the dense layer
            of the language-modelling head restricted to its first d inputs, with bias, activation and norm (released
            code); linear: that matrix alone (eq. 7); identity: none, for full-width sizes only (RetroMAE). The output
            of a decoder always passes the whole head.
        decoder: basic reads the masked text; enhanced predicts every token from its own random part of the text
            (RetroMAE).
        decoder_layers: Transformer layers of a basic decoder.
        decoder_init: first copies the backbone's first layers; random initialises new ones.
        decoder_token_fraction: Part of the decoder's targets that each size predicts, drawn anew at every step.
        contrastive_weight: Weight of InfoNCE between two spans of each document (second stage of arXiv 2208.00231).
        contrastive_temperature: Divides its scores.
        contrastive_normalize: Cosines instead of inner products.
        size_batch: Sizes that the decoder runs at once; None means all.

    Raises:
        UserError: A value is out of range, or options contradict each other.
    """

    sizes: Literal["all", "full"] = "all"
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
        check_choices(self)
        if self.decoder_layers < 1:
            raise UserError(f"a decoder of {self.decoder_layers} layers", "take at least one layer, or mae false")
        if self.decoder == "enhanced" and self.decoder_layers > 1:
            problem = "a second layer of enhanced decoding would show every token its own answer"
            raise UserError(problem, "set decoder_layers to 1")
        if not 0 < self.decoder_token_fraction <= 1:
            raise UserError(f"decoder_token_fraction {self.decoder_token_fraction}", "take more than 0, at most 1")
        if self.size_batch is not None and self.size_batch < 1:
            raise UserError(f"size_batch {self.size_batch} runs no size", "take at least 1")
        if not self.contrastive_temperature > 0:
            raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")
        if self.contrastive_weight < 0:
            raise UserError(f"contrastive_weight {self.contrastive_weight} is negative", "0 switches the term off")
        of_decoder = self.decoder == "enhanced" or self.decoder_layers > 1 or self.decoder_token_fraction < 1
        if of_decoder and not self.mae:
            raise UserError("options of the decoder, but mae false leaves it out", "drop them, or set mae true")
        if self.projection == "identity" and not self.mae:
            raise UserError("projection identity is for the decoder's input, but there is no decoder", "take transform")


def check_choices(options: Any) -> None:
    """Check the fields of a dataclass whose type is a `Literal`.

    Args:
        options: The dataclass.

    Raises:
        UserError: A field has none of the values of its type.
    """
    for name, hint in typing.get_type_hints(type(options)).items():
        value, choices = getattr(options, name), typing.get_args(hint)
        if typing.get_origin(hint) is Literal and value not in choices:
            raise UserError(f"{name} cannot be {value!r}", f"take one of {', '.join(choices)}")


@dataclass(frozen=True)
class PretrainObjective:
    """A value of `--objective`: the loss, the default masks, and the text of the model card.

    Attributes:
        title: Name and source of the method, for the model card.
        options: The loss.
        variants: Other values of `--variant`, each with its loss.
        encoder_probability: Default part of the tokens that is masked for the encoder.
        decoder_probability: Default part of the tokens that is masked for the decoder.
        masks: nested makes the encoder's masked words a subset of the decoder's; independent draws both.
    """

    title: str
    options: PretrainOptions
    variants: Mapping[str, PretrainOptions] = field(default_factory=dict)
    encoder_probability: float = 0.2
    decoder_probability: float = 0.4
    masks: Literal["nested", "independent"] = "independent"


# Starbucks (arXiv 2410.13230), eq. 6-9; its released code takes half of every size's loss.
SMAE = PretrainObjective(
    "Starbucks masked auto-encoding (arXiv 2410.13230)",
    PretrainOptions(),
    {"starbucks-released": PretrainOptions(loss_scale="half")},
    masks="nested",
)
# The ablations of its Table 3: without the decoder, and also without the sizes.
MLM_SIZES = PretrainObjective(
    "masked language modelling at every size (arXiv 2410.13230, Table 3)", PretrainOptions(mae=False)
)
MLM = PretrainObjective("masked language modelling", PretrainOptions(sizes="full", mae=False))
# RetroMAE (arXiv 2205.12035): enhanced decoding, and the paper's simpler variant.
RETROMAE = PretrainObjective(
    "RetroMAE (arXiv 2205.12035)",
    PretrainOptions(sizes="full", projection="identity", decoder="enhanced", decoder_init="random"),
    encoder_probability=0.3,
    decoder_probability=0.5,
)
RETROMAE_BASIC = PretrainObjective(
    "RetroMAE (arXiv 2205.12035) with basic decoding",
    PretrainOptions(sizes="full", projection="identity", decoder_init="random"),
    encoder_probability=0.3,
    decoder_probability=0.5,
)
SMAE_ENHANCED = PretrainObjective(
    "Starbucks masked auto-encoding (arXiv 2410.13230) with RetroMAE's enhanced decoding",
    PretrainOptions(decoder="enhanced"),
)

PRETRAIN_OBJECTIVES: Registry[PretrainObjective] = Registry(
    "pretrain_objectives",
    "pre-training objective",
    {
        "smae": (
            "starbucks_retrieval.pretrain:SMAE",
            "encoder and decoder losses at every size (variants starbucks, starbucks-released)",
        ),
        "mlm-sizes": ("starbucks_retrieval.pretrain:MLM_SIZES", "the encoder loss at every size"),
        "mlm": ("starbucks_retrieval.pretrain:MLM", "the encoder loss at the full size"),
        "retromae": ("starbucks_retrieval.pretrain:RETROMAE", "enhanced decoding from the full size"),
        "retromae-basic": ("starbucks_retrieval.pretrain:RETROMAE_BASIC", "basic decoding from the full size"),
        "smae-enhanced": ("starbucks_retrieval.pretrain:SMAE_ENHANCED", "enhanced decoding from every size"),
    },
)


def visited_sizes(options: PretrainOptions, sizes: Sizes, num_layers: int, hidden_size: int) -> Sizes:
    """Return the sizes that the loss is taken at.

    Args:
        options: The loss.
        sizes: The model's sizes.
        num_layers: Layers of the backbone.
        hidden_size: Width of the backbone.

    Raises:
        UserError: A size does not fit the backbone or the options.

    Example:
        >>> print(visited_sizes(PretrainOptions(sizes="full"), Sizes.parse("2:32,4:64"), 12, 768))
        12:768
    """
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


__getattr__, __dir__ = lazy_exports(__name__, {"PretrainArguments": ".__main__", "pretrain": ".api"})
