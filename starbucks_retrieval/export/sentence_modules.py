"""The modules around a Hugging Face folder that make it a model of sentence-transformers.

Written as plain files, so that exporting needs no sentence-transformers. The names and settings used here have been read
by its versions since 5: the newer long module names would shut the older versions out.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from starbucks_retrieval.files import atomic_writer, write_json
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.sizes import Size

_POOLING = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}


def write_modules(encoder: NestedEncoder, size: Size, folder: Path) -> None:
    """Add modules.json and what it names to a folder written by `write_transformers`.

    Afterwards `encode_document` (or `encode`) and `encode_query` of sentence-transformers give what
    `NestedEncoder.encode` gives at `size` for passages and queries; a query of another length than a passage's is
    the exception, because there is one max_seq_length for both.
    """
    config = encoder.config
    names = ["Transformer", "Pooling"]
    if size.dim < encoder.hidden_size:
        names.append("Dense")
    if config.normalize:
        names.append("Normalize")
    paths = ["" if name == "Transformer" else f"{place}_{name}" for place, name in enumerate(names)]
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
            # Their plain encode() has no prefix by itself; ours takes a text for a passage.
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
    """A linear module that keeps the first `dim` numbers: the first rows of the identity.

    Their own truncate_dim cuts after the last module, so after Normalize, and leaves vectors that are not of length 1.
    No kept module cuts, but this one does so bit for bit: each number is multiplied by 1 and the zeros add nothing.
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
