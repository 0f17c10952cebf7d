"""Export to transformers: a Hugging Face folder with the layers that one size needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.architectures import layout_of
from starbucks_retrieval.sizes import Size, Sizes

_USAGE = """\
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("$name")
model = AutoModel.from_pretrained("$name")
batch = tokenizer([$text], padding=True, truncation=True, max_length=$max_length, return_tensors="pt")
ids, mask = batch.input_ids, batch.attention_mask
with torch.no_grad():
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
passages = $pooled
"""


def write_transformers(encoder: NestedEncoder, size: Size, folder: Path, calibration: Sequence[Any] = ()) -> None:
    """Write config.json, safetensors, tokenizer and starbucks.json of an encoder.

    `AutoModel.from_pretrained` finds every weight, and so do our own encode and train. The sizes in starbucks.json are
    those of the model up to `size.layer`, and `size`.

    Args:
        encoder: The encoder, loaded up to `size.layer`. Its configuration and its tokenizer are changed in place.
        size: The size to export.
        folder: The folder to write into.
        calibration: Not used; every export target has this argument.
    """
    members = {size, *(encoder.config.sizes or ())}  # loading dropped the sizes above the layer
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes(sorted(members)))
    prepare_tokenizer(encoder.tokenizer)
    encoder.save_pretrained(folder, _with_pooler(encoder))


def prepare_tokenizer(tokenizer: Any) -> None:
    """Make a tokenizer pad on the right, with the end token where it has no padding token.

    The truncation of its last call is dropped: other tools would read it from tokenizer.json.

    Args:
        tokenizer: A fast tokenizer of transformers, which is changed in place. If it has neither a padding token nor an
            end token, it pads with its unknown token.
    """
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token


def count_parameters(config: Any, layer: int | None = None) -> int:
    """Return the number of weights of a backbone, from its Hugging Face configuration alone.

    Args:
        config: The configuration, as AutoConfig returns it.
        layer: The last layer to count, from 1; None for all. Weights outside the layers, such as word embeddings,
            always count; those of the pooler never do.

    Raises:
        UserError: The architecture is not supported.
    """
    layout = layout_of(config)
    return sum(
        weight.numel()
        for name, weight in _empty_model(config).named_parameters()
        if not name.startswith("pooler.") and (layer is None or layout.layer_of(name) <= layer)
    )


def _with_pooler(encoder: NestedEncoder) -> dict[str, Tensor]:
    """Return the backbone's weights, and zeros for the pooler that AutoModel adds to some architectures.

    No embedding reads the pooler. Without weights it would be reported missing and initialised at random at each load;
    the weights of the original, trained above the last layer, would be wrong above another one.
    """
    weights = encoder.backbone.state_dict()
    expected = _empty_model(encoder.backbone.config).state_dict()
    pooler = {name: torch.zeros(weight.shape) for name, weight in expected.items() if name.startswith("pooler.")}
    return pooler | weights


def _empty_model(config: Any) -> Any:
    from transformers import AutoModel

    with torch.device("meta"):
        return AutoModel.from_config(config)


def _notes(encoder: NestedEncoder, size: Size, figures: Mapping[str, Any]) -> list[str]:
    return [
        "Read `last_hidden_state`; a `pooler_output`, where the architecture has one, is zeros here.",
        f"`starbucks encode --model_name_or_path {Path(figures['output']).name}` does all of this.",
    ]


TRANSFORMERS = ExportTarget("transformers' AutoModel", write_transformers, _USAGE, _notes)
