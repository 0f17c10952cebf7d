"""Attention that transformers' models compute faster: plain products in bf16 on a CPU, and one bias for all layers of MPNet.

In bf16 on a CPU, torch's fused attention takes twice as long as plain products, forward and backward. Of MPNet, transformers
adds relative positions and padding anew in each layer, in float32 also where the scores are bf16, which costs more than the
products. Here they are summed once a batch, in the type of the scores, and embeddings are made by torch's fused attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

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


def share_bias(backbone: Any) -> None:
    """Let an MPNet compute the bias of its attention once a batch, in place.

    Args:
        backbone: A `transformers.MPNetModel`. Its weights and what it computes stay the same, up to rounding.
    """
    backbone.encoder.__class__ = _BiasOnceEncoder
    for layer in backbone.encoder.layer:
        layer.attention.attn.__class__ = _BiasOnceAttention


class _BiasOnceEncoder(MPNetEncoder):
    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **keywords: Any) -> Any:
        if keywords.get("output_hidden_states") or keywords.get("output_attentions"):
            return super().forward(hidden_states, attention_mask, **keywords)
        bias = self.compute_position_bias(hidden_states[:1])  # [1, heads, tokens, tokens]
        if attention_mask is not None:
            bias = bias + attention_mask  # [batch, heads, tokens, tokens]
        device = hidden_states.device.type
        autocast = torch.is_autocast_enabled(device)
        bias = bias.to(torch.get_autocast_dtype(device) if autocast else hidden_states.dtype)
        for layer in self.layer:
            hidden_states = layer(hidden_states, None, bias)[0]
        return BaseModelOutput(last_hidden_state=hidden_states)


class _BiasOnceAttention(MPNetSelfAttention):
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **keywords: Any,
    ) -> Any:
        if self.training or output_attentions or attention_mask is not None:
            return super().forward(hidden_states, attention_mask, position_bias, output_attentions, **keywords)
        query, key, value = (
            part(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=position_bias)
        return (self.o(context.transpose(1, 2).flatten(2)),)
