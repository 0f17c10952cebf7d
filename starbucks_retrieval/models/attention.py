"""Attention by plain products: in bf16 on a CPU, torch's fused attention takes twice as long, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel


def use_plain_attention(module: nn.Module) -> None:
    """Let the models in a module compute attention by plain products instead of torch's fused attention, in place.

    Args:
        module: A module with models of transformers, to be trained in bf16 on a CPU.
    """
    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
            model.set_attn_implementation("eager")


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Return softmax(queries · keysᵀ / √width) · values, by plain products in bf16 on a CPU.

    Args:
        queries: [batch, heads, rows, width].
        keys: [batch, heads, tokens, width].
        values: As `keys`.
        mask: bool [batch, 1, rows, tokens], True where a row sees a token.
        dropout: Of the attention weights.

    Returns:
        [batch, heads, rows, width].
    """
    if queries.device.type != "cpu" or queries.dtype != torch.bfloat16:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return functional.dropout(weights, dropout) @ values
