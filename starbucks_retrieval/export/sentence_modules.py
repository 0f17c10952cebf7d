"""Export to sentence-transformers: a folder with the modules whose sequence gives the embedding at one size.

They are written as plain files, so exporting does not need the package. Versions since 5 read the names and settings used
here; older versions do not read the newer, longer module names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.export.hugging_face import prepare_tokenizer, write_transformers
from starbucks_retrieval.files import atomic_writer, write_json
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.cutting import cut_projections
from starbucks_retrieval.models.info import ModelInfo
from starbucks_retrieval.models.projections import LayerMap, TokenTable
from starbucks_retrieval.sizes import Size, Sizes

_POOLING = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}
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
    config = encoder.config
    if size.layer == 0:
        names = _write_table(encoder, size, folder)
    else:
        names = _write_layers(encoder, size, folder)
    if config.normalize:
        names.append("Normalize")
    paths = ["" if name == "Transformer" else f"{position}_{name}" for position, name in enumerate(names)]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(zip(names, paths))
        ],
    )
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": {"query": config.query_prefix, "document": config.passage_prefix},
            # Their encode() adds no prefix by default; ours treats a text as a passage.
            "default_prompt_name": "document" if config.passage_prefix else None,
            "similarity_fn_name": "cosine" if config.normalize else "dot",
        },
    )


def _write_layers(encoder: NestedEncoder, size: Size, folder: Path) -> list[str]:
    """Write the backbone, its pooling and its linear module; return the names of the modules."""
    write_transformers(encoder, size, folder)
    names = ["Transformer", "Pooling"]
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length(False), "do_lower_case": False}
    )
    modes = {flag: name == encoder.config.pooling for name, flag in _POOLING.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": encoder.backbone.config.hidden_size,
            "include_prompt": encoder.config.include_prompt,
            **modes,
        },
    )
    if encoder.head is not None:
        names += encoder.head.kinds  # written with the backbone
    if encoder.projections is not None:
        found = cut_projections(encoder.projections, size).map(size.layer)
        if found.normalize:
            names.append("Normalize")
        _write_linear(folder / f"{len(names)}_Dense", found)
        names.append("Dense")
    elif size.dim < encoder.hidden_size:
        _write_linear(folder / f"{len(names)}_Dense", _first(encoder.hidden_size, size.dim))
        names.append("Dense")
    return names


def _first(width: int, dim: int) -> LayerMap:
    """Return a map that keeps the first `dim` dimensions: the first rows of the identity.

    Their truncate_dim cuts after the last module, so after Normalize, and leaves vectors that do not have length 1.
    This map is exact: each number is multiplied by 1, and the zeros add nothing.
    """
    return LayerMap(torch.eye(width)[:dim], None, (), normalize=False)


def _write_linear(folder: Path, found: LayerMap) -> None:
    """Write a map as a Dense module without an activation."""
    dim, width = found.weight.shape
    write_json(
        folder / "config.json",
        {
            "in_features": width,
            "out_features": dim,
            "bias": found.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    weights = {"linear.weight": found.weight} | ({} if found.bias is None else {"linear.bias": found.bias})
    _write_weights(folder / "model.safetensors", weights)


def _write_table(encoder: NestedEncoder, size: Size, folder: Path) -> list[str]:
    """Write the token table and its tokenizer as a StaticEmbedding; return the names of the modules.

    A StaticEmbedding takes the mean over all tokens, ours over those that count; the others have rows of zeros, so only
    the length of the mean differs, which Normalize removes. It adds no special tokens, and cuts texts where its tokenizer
    does.
    """
    assert encoder.projections is not None
    table = cut_projections(encoder.projections, size).token_table
    prepare_tokenizer(encoder.tokenizer)
    tokenizer = type(encoder.tokenizer.backend_tokenizer).from_str(encoder.tokenizer.backend_tokenizer.to_str())
    length = encoder.max_length(False) - encoder.tokenizer.num_special_tokens_to_add()
    tokenizer.enable_truncation(length, direction=encoder.tokenizer.truncation_side)
    _check_tokens(encoder, table, tokenizer)
    module = folder / "0_StaticEmbedding"
    _write_weights(module / "model.safetensors", {"embedding.weight": table.rows * table.counted.unsqueeze(1)})
    tokenizer.save(str(module / "tokenizer.json"))
    # For readers only: the folder has no backbone and no projections that our own tools could load.
    dataclasses.replace(encoder.config, sizes=Sizes([size]), projected_layers=(), head=()).save(folder)
    return ["StaticEmbedding"]


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


def _write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    content = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_writer(path) as file:
        file.write(save(content, metadata={"format": "pt"}))


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
