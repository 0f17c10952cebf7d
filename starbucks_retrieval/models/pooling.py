"""From hidden states to an embedding: pool, cut, normalise, in that order and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector a text from its token states [batch, tokens, hidden] and its mask [batch, tokens]; at least float32.

    cls: the first token. mean: the average over real tokens, special ones included. last: the last real token,
    on whichever side the padding is.
    """
    if pooling == "cls":
        pooled = hidden[:, 0]
    elif pooling == "last":
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = (mask * positions).argmax(dim=1)
        # shape[0] and not len(), which would fix the batch of a traced graph
        pooled = hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
    else:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        pooled = (hidden * weights).sum(dim=1, dtype=wide) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return pooled.to(torch.promote_types(pooled.dtype, torch.float32))


def embedding(pooled: Tensor, dim: int, normalize: bool) -> Tensor:
    """The embedding [batch, dim] of a pooled tap [batch, hidden]: its first `dim` numbers, then L2-normalised if asked.

    Cutting after normalising would leave vectors of different lengths whose dot product is not a cosine.
    Source: Starbucks (arXiv 2410.13230), eq. 1.
    """
    cut = pooled[:, :dim]
    return torch.nn.functional.normalize(cut, dim=-1) if normalize else cut
