"""A name for what computes an embedding, equal for a whole model and for the same model cut to fewer layers.

`<weights>:<settings>`: 32 hexadecimal digits for the tokenizer and the weights up to a layer, which is all that
fingerprints of version 0.1 had, and 16 for the values of config.json that the same weights compute by. Pooling,
normalisation, prefixes and lengths are no part of it: stores tell them beside it, and search compares those that queries
and passages must share.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import torch
from torch import nn

from starbucks_retrieval.models.architectures import ArchitectureLayout, cut_config

# What config.json holds besides: names and versions, number formats and ways to compute, training, heads, generation.
# The number of layers is here as a fingerprint speaks of one layer. Any other value counts, known to us or not.
_NO_MATTER = frozenset(
    [
        "_name_or_path",
        "architectures",
        "auto_map",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "num_hidden_layers",
        "n_layers",
        "num_layers",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "use_cache",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "reference_compile",
        "deterministic_flash_attn",
        "repad_logits_with_grad",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
        "pretraining_tp",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout",
        "attention_dropout",
        "embedding_dropout",
        "mlp_dropout",
        "hidden_dropout",
        "classifier_dropout",
        "seq_classif_dropout",
        "qa_dropout",
        "summary_last_dropout",
        "layerdrop",
        "initializer_range",
        "initializer_factor",
        "initializer_cutoff_factor",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "tie_word_embeddings",
        "classifier_pooling",
        "classifier_bias",
        "classifier_activation",
        "decoder_bias",
        "sparse_prediction",
        "sparse_pred_ignore_index",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "bos_token_id",
        "eos_token_id",
        "cls_token_id",
        "sep_token_id",
        "mask_token_id",
        "decoder_start_token_id",
        "is_encoder_decoder",
    ]
)


def layer_digests(backbone: nn.Module, layout: ArchitectureLayout, tokenizer: Any) -> list[str]:
    """Fingerprints of the model cut to depth 1, 2, …: tokenizer, weights outside the layers, and the layers so far."""
    stack = layout.layers + "."
    shared = _hasher(_vocabulary(tokenizer))
    layers: dict[int, Any] = {}
    for name, tensor in sorted(backbone.state_dict().items()):
        if name.startswith("pooler."):
            continue
        hasher = shared
        if name.startswith(stack):
            index, name = name[len(stack) :].split(".", 1)
            hasher = layers.setdefault(int(index), _hasher(b""))
        hasher.update(f"{name}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    digests = []
    chain = shared
    for depth, index in enumerate(sorted(layers), 1):
        chain.update(layers[index].digest())
        settings = _hasher(_settings(backbone.config, depth, tokenizer), 8).hexdigest()
        digests.append(f"{chain.copy().hexdigest()}:{settings}")
    return digests


def _hasher(start: bytes, size: int = 16) -> Any:
    return hashlib.blake2b(start, digest_size=size)


def _vocabulary(tokenizer: Any) -> bytes:
    """What the tokenizer does to a text, without the padding and truncation that callers set as they go."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("padding", None)
    content.pop("truncation", None)
    return json.dumps(content, sort_keys=True).encode()


def _settings(config: Any, depth: int, tokenizer: Any) -> bytes:
    """How the weights are computed with, up to a layer.

    Only what differs from the architecture's defaults is in it, or a version of transformers that has one more key
    would give every model another name.
    """
    values, defaults = _cut(config, depth), _cut(type(config)(), depth)
    own = {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
    own |= {"model_type": config.model_type, "truncation_side": tokenizer.truncation_side}
    return json.dumps(own, sort_keys=True, default=str).encode()


def _cut(config: Any, depth: int) -> dict[str, Any]:
    cut = copy.deepcopy(config)
    cut_config(cut, depth)
    return _relevant(cut.to_dict())


def _relevant(values: dict[str, Any]) -> dict[str, Any]:
    return {
        str(key): _relevant(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in _NO_MATTER
    }
