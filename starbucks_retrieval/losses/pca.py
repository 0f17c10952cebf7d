"""The compression target of ESE: a batch of embeddings in the frame of its own strongest directions."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor


@torch.no_grad()
def pca_target(
    texts: Tensor, dims: int, method: Literal["exact", "lowrank"] = "exact", canonical: bool = True
) -> Tensor:
    """texts [texts, hidden] times the top singular pairs of rowsoftmax(textsᵀ texts / √hidden): [texts, dims], no gradient.

    lowrank is the randomised decomposition of the published code, which takes torch's global random numbers. Columns
    of singular vectors have no sign of their own; canonical makes the largest entry of each positive, so that equal
    batches have equal targets. Source: ESE (arXiv 2402.14776v3) and arXiv 2411.17299, eq. 8.
    """
    hidden = texts.shape[1]
    attention = (texts.T @ texts / math.sqrt(hidden)).softmax(-1)
    if method == "exact":
        left, strengths, _ = torch.linalg.svd(attention)
    else:
        left, strengths, _ = torch.svd_lowrank(attention, q=dims)
    left, strengths = left[:, :dims], strengths[:dims]
    if canonical:
        largest = left.gather(0, left.abs().argmax(0, keepdim=True))  # [1, dims]
        left = left * torch.where(largest < 0, -1.0, 1.0)
    return texts @ (left * strengths)
