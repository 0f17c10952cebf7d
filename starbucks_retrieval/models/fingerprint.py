"""Fingerprints: digests that identify the part of a model up to a layer.

A fingerprint is `<weights>:<settings>`: 32 hexadecimal digits for the tokenizer and the weights up to a layer, and 16 for
the values of config.json that change what they compute. It is equal for a whole model and for the same model truncated
to that layer. Fingerprints of version 0.1 have the first part only. Pooling, normalisation, prefixes and lengths are not
part of it: stores record them separately, and search compares those that queries and passages must share.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.models.architectures import ArchitectureLayout, cut_config
from starbucks_retrieval.models.head import Head
from starbucks_retrieval.models.weight_files import hash_weights

# Keys of config.json that do not change the embeddings: names and versions, number formats and implementations,
# training, heads, generation, and the number of layers, as a fingerprint is that of one layer. All other keys count.
_IGNORED = frozenset(
    (
        *(
            "_name_or_path",
            "architectures",
            "auto_map",
            "transformers_version",
            "num_hidden_layers",
            "n_layers",
            "num_layers",
        ),
        *("dtype", "torch_dtype", "torchscript", "use_bfloat16", "reference_compile", "deterministic_flash_attn"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "repad_logits_with_grad"),
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
        *("gradient_checkpointing", "tf_legacy_loss", "pretraining_tp", "layerdrop"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout"),
        *(
            "mlp_dropout",
            "hidden_dropout",
            "classifier_dropout",
            "seq_classif_dropout",
            "qa_dropout",
            "summary_last_dropout",
        ),
        *("initializer_range", "initializer_factor", "initializer_cutoff_factor"),
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"),
        *("tie_word_embeddings", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index"),
        *("sliding_window_pattern", "_sliding_window_pattern"),  # layer_types say the same
        *("matryoshka_dimensions", "is_matryoshka"),
        *("classifier_pooling", "classifier_bias", "classifier_activation"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        *(
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
        *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "decoder_start_token_id"),
        "is_encoder_decoder",
    )
)


def layer_digests(
    backbone: nn.Module,
    layout: ArchitectureLayout,
    tokenizer: Any,
    weights: Mapping[str, Tensor] | None = None,
    head: Head | None = None,
) -> list[str]:
    """Return the fingerprints of a model truncated to 0, 1, 2, … layers.

    Args:
        backbone: A bare Hugging Face model.
        layout: The layout of its architecture.
        tokenizer: Its fast tokenizer.
        weights: Its weights by name where they are not in the model, as when they are gathered from several processes.
        head: The modules after pooling, which belong to every layer; None for a model without them.

    Returns:
        Fingerprints of the tokenizer, the weights outside the layers, the head, and the layers so far; that of layer 0
        first.
    """
    stack = layout.layers + "."
    shared = _hasher(_vocabulary(tokenizer) + (b"" if head is None else head.digest()))
    layers: dict[int, Any] = {}
    found = weights or backbone.state_dict()
    for name in sorted(found):
        if name.startswith("pooler."):
            continue
        if name.startswith(stack):
            index, inside = name[len(stack) :].split(".", 1)
            hash_weights(layers.setdefault(int(index), _hasher(b"")), {inside: found[name]})
        else:
            hash_weights(shared, {name: found[name]})
    digests = []
    chain = shared
    for depth in range(len(layers) + 1):
        if depth:
            chain.update(layers[depth - 1].digest())
        settings = _hasher(_settings(backbone.config, depth, tokenizer), 8).hexdigest()
        digests.append(f"{chain.copy().hexdigest()}:{settings}")
    return digests


def projected_digest(fingerprint: str, projection: bytes) -> str:
    """Return the fingerprint of a layer whose output is projected.

    Args:
        fingerprint: That of the backbone up to the layer.
        projection: The digest of the layer's map.

    Example:
        >>> projected_digest("0" * 32 + ":" + "0" * 16, bytes(16))[:8]
        'ff0f2249'
    """
    weights, _, settings = fingerprint.partition(":")
    return f"{_hasher(bytes.fromhex(weights) + projection).hexdigest()}:{settings}"


def _hasher(start: bytes, size: int = 16) -> Any:
    return hashlib.blake2b(start, digest_size=size)


def _vocabulary(tokenizer: Any) -> bytes:
    """Return the tokenizer as JSON, without padding and truncation, which callers set at each call."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("padding", None)
    content.pop("truncation", None)
    return json.dumps(content, sort_keys=True).encode()


def _settings(config: Any, depth: int, tokenizer: Any) -> bytes:
    """Return the settings that the weights up to a layer are used with, as JSON.

    Only values that differ from the architecture's defaults are in it: a version of transformers with one more key must
    not change every fingerprint.
    """
    values, defaults = _cut(config, depth), _cut(type(config)(), depth)
    changed = {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
    changed |= {"model_type": config.model_type, "truncation_side": tokenizer.truncation_side}
    return json.dumps(changed, sort_keys=True, default=str).encode()


def _cut(config: Any, depth: int) -> dict[str, Any]:
    cut = copy.deepcopy(config)
    cut_config(cut, depth)
    return _relevant(cut.to_dict())


def _relevant(values: dict[str, Any]) -> dict[str, Any]:
    return {
        str(key): _relevant(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in _IGNORED
    }
