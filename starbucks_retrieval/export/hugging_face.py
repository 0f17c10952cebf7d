"""Export to transformers: a Hugging Face folder with the layers that one size needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.cutting import with_projections
from starbucks_retrieval.models.info import ModelInfo
from starbucks_retrieval.sizes import Size, Sizes

_TRANSFORMERS_USAGE = """\
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
    those of the model up to `size.layer`, and `size`. Of a fitted model, only the map of that layer is written, and the
    sizes are those of that layer.

    Args:
        encoder: The encoder, loaded up to `size.layer`. Its configuration and its tokenizer are changed in place.
        size: The size to export.
        folder: The folder to write into.
        calibration: Not used; every export target has this argument.
    """
    members = {size, *(encoder.config.sizes or ())}  # loading dropped the sizes above the layer
    maps = encoder.projections
    if maps is not None:
        members = {member for member in members if member.layer == size.layer}
        encoder.config = dataclasses.replace(encoder.config, projected_layers=(size.layer,))
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes(sorted(members)))
    prepare_tokenizer(encoder.tokenizer)
    with_projections(encoder, None).save_pretrained(folder, _with_pooler(encoder))
    if maps is not None:
        maps.subset([size.layer]).save(folder)  # without new fingerprints: it stays in its space


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


def _with_pooler(encoder: NestedEncoder) -> dict[str, Tensor]:
    """Return the backbone's weights, and zeros for the pooler that AutoModel adds to some architectures.

    No embedding reads the pooler. Without weights it would be reported missing and initialised at random at each load;
    the weights of the original, trained above the last layer, would be wrong above another one.
    """
    from transformers import AutoModel

    weights = encoder.backbone.state_dict()
    with torch.device("meta"):  # no memory for the numbers
        expected = AutoModel.from_config(encoder.backbone.config).state_dict()
    pooler = {name: torch.zeros(weight.shape) for name, weight in expected.items() if name.startswith("pooler.")}
    return pooler | weights


def _transformers_notes(encoder: NestedEncoder, size: Size, figures: Mapping[str, Any]) -> list[str]:
    return [
        "Read `last_hidden_state`; a `pooler_output`, where the architecture has one, is zeros here.",
        f"`starbucks encode --model_name_or_path {Path(figures['output']).name}` does all of this.",
    ]


def _check(model: ModelInfo, size: Size) -> None:
    if model.config.projected_layers:
        raise UserError(
            f"{model.name} has fitted maps, which AutoModel does not apply: its embeddings would be those without the fit",
            "use --to sentence-transformers, onnx or openvino, whose exports contain the map",
        )
    if model.config.head:
        raise UserError(
            f"{model.name} has modules after pooling ({', '.join(model.config.head)}), which AutoModel does not apply",
            "use --to sentence-transformers, onnx or openvino, whose exports contain the modules",
        )


TRANSFORMERS = ExportTarget(
    "transformers' AutoModel", write_transformers, _TRANSFORMERS_USAGE, _transformers_notes, check=_check
)
