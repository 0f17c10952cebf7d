"""The last layer of a BERT for the first token alone, which is all that "cls" pooling takes of it.

Keys and values are computed for all tokens; queries, the output of the attention and the feed-forward network, 10 of the
12 width² weights of a layer, for the first token only. Rounding aside, it is what the layer computes for this token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Architectures whose layers have BERT's modules; tests/models/test_first_token.py compares each.
FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
_MIN_TOKENS = 512  # of a batch, padding included


def can_compute(layer: nn.Module, backbone: Any, inputs: Mapping[str, Tensor]) -> bool:
    """Return whether `compute` gives the first token of a layer's output.

    It does not in training and in graphs for other back ends, which take the whole layer, for compiled layers, and for a
    few texts, which have the same bits in `models/bert.py`.

    Args:
        layer: The layer.
        backbone: Its backbone.
        inputs: Those of the backbone; `attention_mask` is [batch, tokens].
    """
    config = backbone.config
    return (
        config.model_type in FAMILIES
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and "attention_mask" in inputs  # which unpadded texts have not
        and type(layer).__module__.startswith("transformers.")
        and "forward" not in vars(layer)
        and config._attn_implementation == "sdpa"
        and inputs["attention_mask"].numel() >= _MIN_TOKENS
        and not config.is_decoder
        and not config.add_cross_attention
        and not config.chunk_size_feed_forward
    )


def compute(layer: Any, hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Compute a layer for the first token.

    Args:
        layer: A BERT layer of transformers, in evaluation mode.
        hidden: The output of the layer below, [batch, tokens, width].
        attention_mask: 1 for tokens and 0 for padding, [batch, tokens].

    Returns:
        [batch, 1, width].
    """
    attend, first = layer.attention.self, hidden[:, :1]
    heads = attend.num_attention_heads
    # The first tokens of a batch come last: keys and values share one cast of their input.
    key, value, query = (
        project(states).unflatten(-1, (heads, -1)).transpose(1, 2)
        for project, states in ((attend.key, hidden), (attend.value, hidden), (attend.query, first))
    )
    mask = None if attention_mask.all() else attention_mask.bool()[:, None, None]
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attend.scaling)
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), first)
    return layer.output(layer.intermediate(attended), attended)
