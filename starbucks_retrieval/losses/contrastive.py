"""InfoNCE over in-batch and hard negatives."""

from __future__ import annotations

import torch
from torch import Tensor


def positive_columns(queries: int, passages: int, device: torch.device | str = "cpu") -> Tensor:
    """Column of each query's positive when passages are stored group after group, the positive first: [queries]."""
    if queries == 0 or passages % queries:
        raise ValueError(f"{passages} passages do not divide into {queries} groups")
    return torch.arange(queries, device=device) * (passages // queries)


def exclude(scores: Tensor, excluded: Tensor | None) -> Tensor:
    """Scores with the `excluded` cells [queries, passages] pushed to zero probability.

    A large finite number, not -inf: differences of two excluded log-probabilities must stay numbers.
    """
    return scores if excluded is None else scores.masked_fill(excluded, torch.finfo(scores.dtype).min / 4)


def info_nce(scores: Tensor, targets: Tensor, temperature: float = 1.0, excluded: Tensor | None = None) -> Tensor:
    """Mean over queries of -log softmax(scores / temperature)[target].

    scores [queries, passages], targets [queries]; `excluded` marks passages that are no negatives of a query.
    Every other passage of the batch is one. Source: Starbucks (arXiv 2410.13230), eq. 4.
    """
    return torch.nn.functional.cross_entropy(exclude(scores / temperature, excluded), targets)
