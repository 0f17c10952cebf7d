"""Export to ONNX and OpenVINO: one graph from token ids to the embedding, with the tokenizer beside it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.saving import save_tokenizer
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

_USAGE = """\
import {module}
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("$name")
{load}
batch = tokenizer([$text], padding=True, truncation=True, max_length=$max_length, return_tensors="np")
inputs = {{key: batch[key] for key in ("input_ids", "attention_mask")}}
{run}
"""


def write_onnx_folder(encoder: NestedEncoder, size: Size, folder: Path, calibration: list[Passage]) -> None:
    """Write model.onnx, the tokenizer, and a starbucks.json with this size alone.

    Args:
        encoder: The encoder, on the CPU.
        size: The size of the embedding.
        folder: Where the files go.
        calibration: Not used; other exporters are called with it.

    Raises:
        UserError: As for `write_onnx`.
    """
    from starbucks_retrieval.models.backends.onnx import write_onnx

    _write_settings(encoder, size, folder)
    write_onnx(encoder, size, folder / "model.onnx")


def write_openvino_folder(encoder: NestedEncoder, size: Size, folder: Path, calibration: list[Passage]) -> None:
    """Write openvino_model.xml and .bin, the tokenizer, and a starbucks.json with this size alone.

    Args:
        encoder: The encoder, on the CPU.
        size: The size of the embedding.
        folder: Where the files go.
        calibration: Passages by which the scales of int8 are set; fp32 is written without any.

    Raises:
        UserError: As for `write_openvino`.
    """
    from starbucks_retrieval.models.backends.openvino import write_openvino

    _write_settings(encoder, size, folder)
    if calibration:
        log.info("setting the 8-bit scales on %d texts, which can take minutes", len(calibration))
    write_openvino(encoder, size, folder, _token_rows(encoder, calibration) if calibration else None)


def _write_settings(encoder: NestedEncoder, size: Size, folder: Path) -> None:
    save_tokenizer(encoder.tokenizer, folder)
    # The graph holds the projection and the modules after pooling, so there are no files of them.
    dataclasses.replace(encoder.config, sizes=Sizes([size]), projected_layers=(), head=()).save(folder)


def _token_rows(encoder: NestedEncoder, passages: list[Passage]) -> list[list[int]]:
    config = encoder.config
    texts = [join_text(passage, config.passage_field_separator, config.passage_prefix) for passage in passages]
    return encoder.tokenize(texts, encoder.max_length(False))


def _notes(encoder: NestedEncoder, size: Size, figures: Mapping[str, Any]) -> list[str]:
    normalizes = " and normalises" if encoder.config.normalize else ""
    notes = [
        f"The graph pools, cuts{normalizes}: its output is `embedding`, [texts, {size.dim}]. Pad on the right, as this "
        "tokenizer does."
    ]
    if figures["to"] == "openvino" and not figures["int8"]:
        notes.append(
            "On processors with bfloat16, OpenVINO computes in bfloat16 by default; for float32 give `compile_model` "
            '`{"INFERENCE_PRECISION_HINT": "f32"}`.'
        )
    if figures["int8"]:
        notes.append(
            f"The 8-bit scales were set on {figures['calibration_texts']} texts. x86 processors without VNNI gain little "
            "speed by them, and their sums are less exact."
        )
    return notes


ONNX = ExportTarget(
    "ONNX Runtime",
    write_onnx_folder,
    _USAGE.format(
        module="onnxruntime",
        load='session = onnxruntime.InferenceSession("$name/model.onnx", providers=["CPUExecutionProvider"])',
        run='(passages,) = session.run(["embedding"], inputs)',
    ),
    _notes,
    packages=("onnx", "onnxscript", "onnxruntime"),
)
OPENVINO = ExportTarget(
    "OpenVINO",
    write_openvino_folder,
    _USAGE.format(
        module="openvino",
        load='model = openvino.Core().compile_model("$name/openvino_model.xml", "CPU")',
        run='passages = model(inputs)["embedding"]',
    ),
    _notes,
    packages=("openvino",),
    int8_packages=("nncf",),
)
