"""Export to transformers and sentence-transformers: a Hugging Face folder with the layers that one size needs.

For sentence-transformers the folder also holds its modules. They are written as plain files, so exporting does not need
the package. Versions since 5 read the names and settings used here; older versions do not read the newer, longer module
names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from starbucks_retrieval.export import ExportTarget
from starbucks_retrieval.files import atomic_writer, write_json
from starbucks_retrieval.models import NestedEncoder
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
_POOLING = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}
_SENTENCE_TRANSFORMERS_USAGE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("$name")
queries = model.encode_query(["a question"])
passages = model.encode_document(["a passage", "another passage"])
scores = model.similarity(queries, passages)
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


TRANSFORMERS = ExportTarget("transformers' AutoModel", write_transformers, _TRANSFORMERS_USAGE, _transformers_notes)


def write_sentence_transformers(
    encoder: NestedEncoder, size: Size, folder: Path, calibration: Sequence[Any] = ()
) -> None:
    """Write a Hugging Face folder, modules.json and the modules; `calibration` is not used.

    `encode_document` (or `encode`) and `encode_query` of sentence-transformers then return the same as
    `NestedEncoder.encode` at `size` for passages and queries, except for queries that are longer than a passage may
    be, because max_seq_length is one for both.
    """
    write_transformers(encoder, size, folder)
    config = encoder.config
    names = ["Transformer", "Pooling"]
    if size.dim < encoder.hidden_size:
        names.append("Dense")
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
        folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length(False), "do_lower_case": False}
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
    modes = {flag: name == config.pooling for name, flag in _POOLING.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": encoder.hidden_size, "include_prompt": True, **modes},
    )
    if "Dense" in names:
        _write_cut(folder / "2_Dense", encoder.hidden_size, size.dim)


def _write_cut(folder: Path, width: int, dim: int) -> None:
    """Write a linear module that keeps the first `dim` dimensions: the first rows of the identity.

    Their truncate_dim cuts after the last module, so after Normalize, and leaves vectors that do not have length 1.
    This module is exact: each number is multiplied by 1, and the zeros add nothing.
    """
    write_json(
        folder / "config.json",
        {
            "in_features": width,
            "out_features": dim,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    with atomic_writer(folder / "model.safetensors") as file:
        file.write(save({"linear.weight": torch.eye(width)[:dim].contiguous()}, metadata={"format": "pt"}))


def _sentence_transformers_notes(encoder: NestedEncoder, size: Size, figures: Mapping[str, Any]) -> list[str]:
    notes = []
    query, passage = encoder.max_length(True), encoder.max_length(False)
    if encoder.config.query_prefix or encoder.config.passage_prefix:
        notes.append("`encode_query` and `encode_document` add the prefixes.")
    if query != passage:
        notes.append(
            f"`max_seq_length` is that of passages; set `model.max_seq_length = {query}` before you embed queries."
        )
    return notes


SENTENCE_TRANSFORMERS = ExportTarget(
    "sentence-transformers", write_sentence_transformers, _SENTENCE_TRANSFORMERS_USAGE, _sentence_transformers_notes
)
