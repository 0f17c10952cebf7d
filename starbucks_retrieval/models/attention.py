"""Attention by plain products: in bf16 on a CPU, torch's fused attention takes twice as long, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

_REGISTERED = "starbucks_plain"


def use_plain_attention(module: nn.Module) -> None:
    """Let the models in a module compute attention by plain products instead of torch's fused attention, in place.

    Args:
        module: A module with models of transformers, to be trained in bf16 on a CPU.
    """
    AttentionInterface.register(_REGISTERED, _attention)
    AttentionMaskInterface.register(_REGISTERED, eager_mask)
    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(_REGISTERED)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, dropout: float, scaling: float | None = None
) -> Tensor:
    """Return softmax(scaling · queries · keysᵀ + bias) · values, by plain products in bf16 on a CPU.

    Args:
        queries: [batch, heads, rows, width].
        keys: [batch, heads, tokens, width].
        values: As `keys`.
        bias: Added to the scores: 0 where a row sees a token, -inf (or the lowest number) where it does not,
            [batch, 1, rows, tokens]. None: every row sees every token.
        dropout: Of the attention weights.
        scaling: Default 1/√width.

    Returns:
        [batch, heads, rows, width].
    """
    if queries.device.type != "cpu" or queries.dtype != torch.bfloat16:
        bias = bias if bias is None else bias.to(queries.dtype)
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=bias, dropout_p=dropout, scale=scaling
        )
    # The queries are scaled, and the mask is added, because both take less than a pass over the scores and its gradient.
    scores = queries * (queries.shape[-1] ** -0.5 if scaling is None else scaling) @ keys.transpose(-1, -2)
    if bias is not None:
        # Finite, because padding may see no token at all, and a softmax over nothing is NaN.
        scores = scores + bias.clamp_min(torch.finfo(scores.dtype).min).to(scores.dtype)
    return functional.dropout(scores.softmax(-1), dropout) @ values


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: query [batch, heads, tokens, width] → [batch, tokens, heads, width]."""
    return attend(query, key, value, attention_mask, dropout, scaling).transpose(1, 2), None
