"""A plain Hugging Face folder of the layers that one size needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.architectures import layout_of
from starbucks_retrieval.sizes import Size, Sizes


def write_transformers(encoder: NestedEncoder, size: Size, folder: Path) -> None:
    """Write config.json, safetensors, tokenizer and starbucks.json of an encoder that was loaded up to `size.layer`.

    `AutoModel.from_pretrained` finds every weight it looks for, and so do our own encode and train. The sizes in
    starbucks.json are the model's own up to that layer, and `size` among them.
    """
    members = {size, *(encoder.config.sizes or ())}  # loading kept only those that it can reach
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes(sorted(members)))
    prepare_tokenizer(encoder.tokenizer)
    encoder.save_pretrained(folder, _with_pooler(encoder))


def prepare_tokenizer(tokenizer: Any) -> None:
    """Make a tokenizer pad as our own batches do: on the right, and with some token even where it has none for it.

    A length that it was once used with is dropped: tokenizer.json would carry it to tools that read nothing else.
    """
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token


def parameters(config: Any, layer: int | None = None) -> int:
    """Weights of a bare backbone up to `layer`, or all of them, from its Hugging Face configuration alone."""
    layout = layout_of(config)
    return sum(
        weight.numel()
        for name, weight in _empty_model(config).named_parameters()
        if not name.startswith("pooler.") and (layer is None or layout.layer_of(name) <= layer)
    )


def _with_pooler(encoder: NestedEncoder) -> dict[str, Tensor]:
    """The backbone's weights, and zeros for the head that AutoModel puts above some architectures.

    No embedding reads that head. Left out, it would be reported missing and filled at random at every load; the
    original's, trained above the last layer, would give plausible nonsense above another one.
    """
    weights = encoder.backbone.state_dict()
    wanted = _empty_model(encoder.backbone.config).state_dict()
    head = {name: torch.zeros(weight.shape) for name, weight in wanted.items() if name.startswith("pooler.")}
    return head | weights


def _empty_model(config: Any) -> Any:
    from transformers import AutoModel

    with torch.device("meta"):
        return AutoModel.from_config(config)
