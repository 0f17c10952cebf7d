"""ONNX and OpenVINO: one graph from token ids to the embedding, with its tokenizer beside it."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import logging
from pathlib import Path

from starbucks_retrieval.data import Passage, join_text, open_corpus
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export.weights import prepare_tokenizer
from starbucks_retrieval.models import EncoderConfig, NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

CALIBRATION_TEXTS = 300

_NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",), "int8": ("openvino", "nncf")}


def check_packages(target: str, int8: bool) -> None:
    """Raise UserError, naming the extra, where a package that `target` needs is not installed."""
    for name in _NEEDED.get("int8" if int8 else target, ()):
        if importlib.util.find_spec(name) is None:
            what = "--int8" if int8 else f"--to {target}"
            raise UserError(f"{what} needs the package {name}", f"pip install 'starbucks-retrieval[{target}]'")


def read_calibration(collection: str) -> list[Passage]:
    """The first passages of a corpus. Raises UserError where it is missing, malformed or empty."""
    passages = list(itertools.islice(open_corpus(collection), CALIBRATION_TEXTS))
    if not passages:
        raise UserError(f"{collection} holds no passages", "name a corpus like the one to be encoded")
    return passages


def write_graph(encoder: NestedEncoder, size: Size, folder: Path, target: str, calibration: list[Passage]) -> None:
    """Write the graph of `size`, the tokenizer, and a starbucks.json that has this one size; int8 with `calibration`."""
    from starbucks_retrieval.models.backends.onnx import write_onnx
    from starbucks_retrieval.models.backends.openvino import write_openvino

    prepare_tokenizer(encoder.tokenizer)
    encoder.tokenizer.save_pretrained(folder)  # before it is used: it would save the truncation it was last used with
    dataclasses.replace(encoder.config, sizes=Sizes([size])).save(folder)
    if target == "onnx":
        write_onnx(encoder, size, folder / "model.onnx")
    else:
        if calibration:
            log.info("setting the 8-bit scales on %d texts, which can take minutes", len(calibration))
        write_openvino(encoder, size, folder, _token_rows(encoder, calibration) if calibration else None)


def _token_rows(encoder: NestedEncoder, passages: list[Passage]) -> list[list[int]]:
    config: EncoderConfig = encoder.config
    texts = [join_text(passage, config.passage_field_separator, config.passage_prefix) for passage in passages]
    return encoder.tokenize(texts, encoder.max_length(False))
