"""The terms of the losses as functions of tensors: InfoNCE, KL divergences, and the PCA target of 2D Matryoshka v2."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor


def positive_columns(queries: int, passages: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the column of each query's positive.

    Args:
        queries: Number of queries.
        passages: Number of passages, stored group after group, the positive first in each.
        device: Device of the result.

    Returns:
        int64 [queries].

    Raises:
        ValueError: The passages do not divide into one group per query.

    Example:
        >>> positive_columns(3, 6)
        tensor([0, 2, 4])
    """
    if queries == 0 or passages % queries:
        raise ValueError(f"{passages} passages do not divide into {queries} groups")
    return torch.arange(queries, device=device) * (passages // queries)


def exclude(scores: Tensor, excluded: Tensor | None) -> Tensor:
    """Return the scores with the excluded cells at probability zero after a softmax.

    The cells get a large finite number, not -inf: the difference of two excluded log-probabilities must not be NaN.

    Args:
        scores: Float [queries, passages].
        excluded: Bool [queries, passages]; None excludes nothing.
    """
    return scores if excluded is None else scores.masked_fill(excluded, torch.finfo(scores.dtype).min / 4)


def info_nce(scores: Tensor, targets: Tensor, temperature: float = 1.0, excluded: Tensor | None = None) -> Tensor:
    """Return the mean over queries of -log softmax(scores / temperature)[target].

    Source: Starbucks (arXiv 2410.13230), eq. 4.

    Args:
        scores: Float [queries, passages].
        targets: The column of each query's positive, int64 [queries].
        temperature: Divides the scores.
        excluded: Bool [queries, passages], passages that are not negatives of a query. All others of the batch are.

    Returns:
        A scalar.

    Example:
        >>> info_nce(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))  # log 2
        tensor(0.6931)
    """
    return torch.nn.functional.cross_entropy(exclude(scores / temperature, excluded), targets)


def kl_rows(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean over rows of KL(softmax(teacher) ‖ softmax(student)).

    Args:
        teacher: Logits [rows, columns].
        student: Logits of the same shape.

    Example:
        >>> kl_rows(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 1.0]]))  # a softmax ignores a constant
        tensor(0.)
    """
    log_t, log_s = teacher.log_softmax(-1), student.log_softmax(-1)
    return (log_t.exp() * (log_t - log_s)).sum() / teacher.shape[0]


def score_kl(teacher: Tensor, student: Tensor, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """Return the KL divergence between two score distributions over the passages.

    Source: Starbucks (arXiv 2410.13230), eq. 5.

    Args:
        teacher: Scores at the size that teaches, [queries, passages].
        student: Scores at the size that learns, of the same shape.
        temperature: Divides both.
        excluded: Bool [queries, passages], cells that neither distribution covers.
    """
    return kl_rows(exclude(teacher / temperature, excluded), exclude(student / temperature, excluded))


def coordinate_kl(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence between softmaxes over the coordinates of embeddings, as in the released STS code.

    Args:
        teacher: Embeddings [texts, dim] of the size that teaches.
        student: Embeddings of the same shape.
        temperature: Divides both.
    """
    return kl_rows(teacher / temperature, student / temperature)


@torch.no_grad()
def pca_target(
    texts: Tensor, dims: int, method: Literal["exact", "lowrank"] = "exact", canonical: bool = True
) -> Tensor:
    """Return the embeddings in the frame of the top singular pairs of rowsoftmax(textsᵀ texts / √hidden).

    Source: ESE (arXiv 2402.14776v3) and arXiv 2411.17299, eq. 8.

    Args:
        texts: Embeddings [texts, hidden].
        dims: Number of singular pairs.
        method: lowrank is the randomised decomposition of the published code, which uses torch's global generator.
        canonical: Flip each singular vector so that its largest entry is positive. Singular vectors have no sign of
            their own; with this, equal batches have equal targets.

    Returns:
        [texts, dims], without gradient.

    Example:
        >>> pca_target(torch.eye(4), 2).shape
        torch.Size([4, 2])
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
