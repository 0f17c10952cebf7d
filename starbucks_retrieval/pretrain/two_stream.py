"""One transformer layer taken apart, so that its queries and its keys can come from different places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
FAMILIES = (*_BERT_LIKE, "distilbert")


@dataclass(frozen=True)
class AttentionParts:
    """Projections of a layer's attention, and `finish(context, residual)`, all that comes after it, row by row."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    heads: int
    dropout: float
    finish: Callable[[Tensor, Tensor], Tensor]


def parts_of(layer: Any, model_type: str) -> AttentionParts:
    """The parts of a layer of one of FAMILIES."""
    attention = layer.attention
    if model_type in _BERT_LIKE:
        inner = attention.self

        def finish(context: Tensor, residual: Tensor) -> Tensor:
            return layer.feed_forward_chunk(attention.output(context, residual))

        return AttentionParts(inner.query, inner.key, inner.value, inner.num_attention_heads, inner.dropout.p, finish)

    def finish_distilbert(context: Tensor, residual: Tensor) -> Tensor:
        attended = layer.sa_layer_norm(attention.out_lin(context) + residual)
        return layer.output_layer_norm(layer.ffn(attended) + attended)

    projections = attention.q_lin, attention.k_lin, attention.v_lin
    return AttentionParts(*projections, attention.n_heads, attention.dropout.p, finish_distilbert)


def two_stream_attention(
    parts: AttentionParts,
    queries: Tensor,
    first: Tensor,
    tokens: Tensor,
    visible: Tensor,
    shifted: bool,
    dropout: float = 0.0,
) -> Tensor:
    """What each row of each size reads from [first, tokens 1 …]: [sizes, batch, rows, hidden].

    queries [1 or sizes, batch, rows, hidden]; with `shifted`, `first` is added to them. first [sizes, batch, hidden] is
    column 0; tokens [batch, tokens, hidden] gives the other columns, whose keys and values all sizes share.
    visible bool [1 or sizes, batch, 1 or rows, tokens]: a row that may see nothing, as padding does, sees column 0.
    Source: RetroMAE (arXiv 2205.12035), eq. 4-6.
    """
    sizes, (batch, rows) = len(first), queries.shape[1:3]
    asked = parts.query(queries)
    if shifted:
        asked = asked + functional.linear(first, parts.query.weight)[:, :, None]
    asked = asked.expand(sizes, -1, -1, -1)
    keys, values = (
        torch.cat([part(first)[:, :, None], part(tokens[:, 1:]).expand(sizes, -1, -1, -1)], dim=2)
        for part in (parts.key, parts.value)
    )
    # Softmax over nothing is not a number, and would be one in the gradients of the other rows too.
    blind = ~visible.any(-1, keepdim=True)
    visible = torch.cat([visible[..., :1] | blind, visible[..., 1:]], dim=-1)
    mask = visible.expand(sizes, -1, rows, -1).flatten(0, 1)[:, None]
    asked, keys, values = (
        x.flatten(0, 1).unflatten(-1, (parts.heads, -1)).transpose(1, 2) for x in (asked, keys, values)
    )
    context = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, dropout_p=dropout)
    return context.transpose(1, 2).flatten(2).unflatten(0, (sizes, batch))
