"""Export to transformers: a Hugging Face folder with the layers that one size needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.info import ModelInfo
from starbucks_retrieval.models.saving import save_backbone
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
        encoder: The encoder, loaded up to `size.layer`. Its configuration is changed in place.
        size: The size to export.
        folder: The folder to write into.
        calibration: Not used; every export target has this argument.
    """
    trained = encoder.config.sizes or ()  # loading dropped the sizes above the layer
    members, maps = {size, *trained}, encoder.projections
    dims = [member.dim for member in trained if member.layer == size.layer and maps is None]
    if maps is not None:
        members = {member for member in members if member.layer == size.layer}
        encoder.config = dataclasses.replace(encoder.config, projected_layers=(size.layer,))
    encoder.config = dataclasses.replace(encoder.config, sizes=Sizes(sorted(members)))
    save_backbone(encoder.backbone, encoder.tokenizer, folder, dims=[dim for dim in dims if dim <= size.dim])
    if encoder.head is not None:
        encoder.head.save(folder)
        encoder.config = dataclasses.replace(encoder.config, head=encoder.head.folders)
    if maps is not None:
        maps.subset([size.layer]).save(folder)  # without new fingerprints: it stays in its space
    encoder.config.save(folder)


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
