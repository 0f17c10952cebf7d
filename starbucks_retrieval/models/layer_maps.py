"""The parts of `Projections`: the linear map of one layer, and the token table of layer 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class LayerMap(nn.Module):
    """The linear map of one layer.

    Args:
        weight: [hidden, inputs x hidden].
        bias: [hidden], or None.
        inputs: The layers whose pooled outputs are concatenated as its input.
        normalize: Bring each pooled output to length 1 first.

    Example:
        >>> turn = LayerMap(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), None, (6,), normalize=False)
        >>> turn({6: torch.tensor([[3.0, 4.0]])}).tolist()
        [[4.0, 3.0]]
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, inputs: Sequence[int], normalize: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.inputs = tuple(inputs)
        self.normalize = normalize

    def forward(self, pooled_layers: Mapping[int, Tensor]) -> Tensor:
        """Return [batch, hidden] from {layer: pooled output [batch, hidden]}, computed in float32."""
        parts = [pooled_layers[layer].to(self.weight.dtype) for layer in self.inputs]
        if self.normalize:
            parts = [nn.functional.normalize(part, dim=-1) for part in parts]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return nn.functional.linear(joined, self.weight, self.bias)


class TokenTable(nn.Module):
    """The embedding of layer 0: the mean of one vector per token, without any transformer layer.

    Args:
        rows: [vocabulary, hidden].
        counted: Whether a token counts in the mean, [vocabulary]; None: where its row is not zero. Tokens such as [CLS]
            and [SEP] do not.

    Example:
        >>> table = TokenTable(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]))
        >>> table.embed_rows([[0, 1, 2, 0], [1]]).tolist()
        [[0.5, 1.5], [1.0, 0.0]]
    """

    def __init__(self, rows: Tensor, counted: Tensor | None = None) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)
        self.register_buffer("counted", rows.ne(0).any(dim=1) if counted is None else counted, persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return [batch, hidden] from token ids and mask, both [batch, tokens]."""
        weights = (attention_mask * self.counted[input_ids]).to(self.rows.dtype).unsqueeze(-1)
        total = (nn.functional.embedding(input_ids, self.rows) * weights).sum(dim=1)
        return total / weights.sum(dim=1).clamp(min=1)

    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return [texts, hidden] from the token ids of each text, without padding."""
        device = self.rows.device
        lengths = torch.tensor([len(row) for row in rows], device=device)
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long, device=device)
        starts = lengths.cumsum(0) - lengths
        total = nn.functional.embedding_bag(ids, self.rows, starts, mode="sum")
        text = torch.repeat_interleave(torch.arange(len(rows), device=device), lengths)
        counts = torch.zeros(len(rows), device=device).index_add_(0, text, self.counted[ids].float())
        return total / counts.clamp(min=1).unsqueeze(1)
