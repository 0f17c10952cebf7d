"""Export to transformers and sentence-transformers: a folder with the layers, and the modules, that one size needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.info import ModelInfo
from starbucks_retrieval.models.projections import TokenTable
from starbucks_retrieval.models.saving import plain_tokenizer, save_backbone
from starbucks_retrieval.models.sentence_modules import write_layer_modules, write_modules
from starbucks_retrieval.models.weight_files import write_weights
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


def _check_plain(model: ModelInfo, size: Size) -> None:
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
    "transformers' AutoModel", write_transformers, _TRANSFORMERS_USAGE, _transformers_notes, check=_check_plain
)


_USAGE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("$name")
queries = model.encode_query(["a question"])
passages = model.encode_document(["a passage", "another passage"])
scores = model.similarity(queries, passages)
"""
# Texts whose tokens are compared: accents, scripts, punctuation, numbers, an address, and one that is cut.
_PROBES = (
    *("Hens lay eggs, moths fly at night.", "don't: 3.14 %", "Zoë's café – naïve", "東京 Москва", "x@example.org"),
    "a rather long text " * 500,
)


def write_sentence_transformers(
    encoder: NestedEncoder, size: Size, folder: Path, calibration: Sequence[Any] = ()
) -> None:
    """Write a Hugging Face folder, modules.json and the modules; `calibration` is not used.

    `encode_document` (or `encode`) and `encode_query` of sentence-transformers then return the same as
    `NestedEncoder.encode` at `size` for passages and queries, except for queries that are longer than a passage may
    be, because the longest length is one for both.

    Raises:
        UserError: At layer 0, the tokenizer gives other tokens where sentence-transformers calls it.
    """
    if size.layer == 0:
        _write_table(encoder, size, folder)
        return
    write_transformers(encoder, size, folder)
    found = None
    if encoder.projections is not None:
        found = encoder.projections.cut(size).map(size.layer)
    write_layer_modules(folder, encoder, size, encoder.max_length(False), found)


def _write_table(encoder: NestedEncoder, size: Size, folder: Path) -> None:
    """Write the token table and its tokenizer as a StaticEmbedding.

    A StaticEmbedding takes the mean over all tokens, ours over those that count; the others have rows of zeros, so only
    the length of the mean differs, which Normalize removes. It adds no special tokens, and cuts texts where its tokenizer
    does.
    """
    assert encoder.projections is not None
    table = encoder.projections.cut(size).token_table
    tokenizer = plain_tokenizer(encoder.tokenizer).backend_tokenizer
    length = encoder.max_length(False) - encoder.tokenizer.num_special_tokens_to_add()
    tokenizer.enable_truncation(length, direction=encoder.tokenizer.truncation_side)
    _check_tokens(encoder, table, tokenizer)
    module = folder / "0_StaticEmbedding"
    write_weights(module / "model.safetensors", {"embedding.weight": table.rows * table.counted.unsqueeze(1)})
    tokenizer.save(str(module / "tokenizer.json"))
    # For readers only: the folder has no backbone and no projections that our own tools could load.
    dataclasses.replace(encoder.config, sizes=Sizes([size]), projected_layers=(), head=()).save(folder)
    write_modules(folder, encoder.config, ["StaticEmbedding"])


def _check_tokens(encoder: NestedEncoder, table: TokenTable, tokenizer: Any) -> None:
    """Raise UserError if a tokenizer without special tokens gives other tokens that count than the encoder's."""
    counted = table.counted.cpu().numpy()
    ours = encoder.tokenize(_PROBES, encoder.max_length(False))
    theirs = [found.ids for found in tokenizer.encode_batch(list(_PROBES), add_special_tokens=False)]
    for text, row, other in zip(_PROBES, ours, theirs):
        left, right = (np.asarray(ids, dtype=np.int64) for ids in (row, other))
        if not np.array_equal(left[counted[left]], right[counted[right]]):
            raise UserError(
                f"the tokenizer of {encoder.name} gives other tokens for {text[:20]!r} without special tokens, as "
                "sentence-transformers calls it at layer 0",
                "export a size from layer 1, or use --to onnx or openvino",
            )


def _check(model: ModelInfo, size: Size) -> None:
    """Raise UserError for an embedding that no sequence of modules gives."""
    if not model.config.projected_layers:
        return
    if size.layer == 0 and not model.config.normalize:
        raise UserError(
            "layer 0 cannot be exported to sentence-transformers from a model that compares dot products: a "
            "StaticEmbedding counts unknown tokens in its mean, which changes the lengths of embeddings",
            "use --to onnx or openvino, or a size from layer 1",
        )
    inputs = model.map_inputs(size.layer) if size.layer else ()
    if len(inputs) > 1:
        others, remedy = (
            ("of the token table", "with --table_input false")
            if 0 in inputs
            else ("of several layers", "without --concat_layers")
        )
        raise UserError(
            f"the map of layer {size.layer} takes the outputs {others} too, and modules of sentence-transformers see those "
            "of one layer",
            f"use --to onnx or openvino, or run starbucks fit {remedy}",
        )


def _notes(encoder: NestedEncoder, size: Size, figures: Mapping[str, Any]) -> list[str]:
    notes = []
    query, passage = encoder.max_length(True), encoder.max_length(False)
    if encoder.config.query_prefix or encoder.config.passage_prefix:
        notes.append("`encode_query` and `encode_document` add the prefixes.")
    if query != passage and size.layer:
        notes.append(
            f"`max_seq_length` is that of passages; set `model.max_seq_length = {query}` before you embed queries."
        )
    elif query != passage:
        length = query - encoder.tokenizer.num_special_tokens_to_add()
        notes.append(
            "The tokenizer cuts texts at the length of passages; call "
            f"`model[0].tokenizer.enable_truncation({length})` before you embed queries."
        )
    return notes


SENTENCE_TRANSFORMERS = ExportTarget("sentence-transformers", write_sentence_transformers, _USAGE, _notes, check=_check)
