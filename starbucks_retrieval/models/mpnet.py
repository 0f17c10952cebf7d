"""MPNet's attention with one bias for all layers: transformers adds relative positions and padding anew in each of them.

It adds them in float32 also where the scores are bf16, which costs more than the products. Here they are summed once a
batch, in the type of the scores, and embeddings are made by torch's fused attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention


def share_bias(backbone: Any) -> None:
    """Let an MPNet compute the bias of its attention once a batch, in place.

    Args:
        backbone: A `transformers.MPNetModel`. Its weights and what it computes stay the same, up to rounding.
    """
    backbone.encoder.__class__ = _Encoder
    for layer in backbone.encoder.layer:
        layer.attention.attn.__class__ = _SelfAttention


class _Encoder(MPNetEncoder):
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


class _SelfAttention(MPNetSelfAttention):
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
