"""The parts of `Projections`: the linear map of one layer, and the token table of layer 0."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn


class LayerMap(nn.Module):
    """The linear map of one layer.

    Args:
        weight: [hidden, inputs x hidden].
        bias: [hidden], or None.
        inputs: The layers whose outputs are concatenated as its input; 0 is the mean of the token table.
        normalize: Bring each output to length 1 first.

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
        """Return [batch, hidden] from {layer: its output [batch, hidden]}, computed in float32."""
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
        """Return the means of the tokens that count, [batch, hidden]; zeros for a text without such a token.

        Args:
            input_ids: Token ids, int64 [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].
        """
        weights = (attention_mask * self.counted[input_ids]).to(self.rows.dtype).unsqueeze(-1)
        total = (nn.functional.embedding(input_ids, self.rows) * weights).sum(dim=1)
        return total / weights.sum(dim=1).clamp(min=1)

    def embed_rows(self, rows: Sequence[Sequence[int]], dim: int | None = None) -> Tensor:
        """Return the means of the tokens that count, from rows without padding.

        Args:
            rows: The token ids of each text.
            dim: How many numbers of each mean; None: all.

        Returns:
            [texts, dim], on the device of the table; zeros for a text without a token that counts.
        """
        device = self.rows.device
        ends = np.cumsum([0, *map(len, rows)])
        found = np.fromiter(itertools.chain.from_iterable(rows), np.int64, ends[-1])
        ids, bounds = torch.from_numpy(found).to(device), torch.from_numpy(ends).to(device)
        # A copy of the columns that are needed: rows that lie close together are read several times faster.
        total = nn.functional.embedding_bag(ids, self.rows[:, :dim].contiguous(), bounds[:-1], mode="sum")
        counts = nn.functional.pad(self.counted[ids].cumsum(0), (1, 0))[bounds].diff()
        return total / counts.clamp(min=1).unsqueeze(1)
