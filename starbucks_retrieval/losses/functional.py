"""The terms of the losses as functions of tensors: InfoNCE, KL divergences, a PCA target, a large cross-entropy."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

# Logits in memory at once: enough rows to keep the processor's matrix units busy.
_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}


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
    return functional.cross_entropy(exclude(scores / temperature, excluded), targets)


def round_to_bits(vectors: Tensor) -> Tensor:
    """Return vectors as a binary store would decode them; the gradient passes as if they were not rounded.

    In each dimension, numbers above the median become the median plus the mean distance from it, the others the median
    minus it (`store.dtypes.Quantiser`).
    Source: the straight-through estimator of Bengio, Léonard and Courville (arXiv 1308.3432).

    Args:
        vectors: [vectors, dim], at least one.

    Returns:
        [vectors, dim].

    Example:
        >>> round_to_bits(torch.tensor([[0.0], [1.0], [4.0], [7.0]])).T
        tensor([[0., 0., 5., 5.]])
    """
    with torch.no_grad():
        ordered = vectors.sort(dim=0).values
        median = (ordered[(len(vectors) - 1) // 2] + ordered[len(vectors) // 2]) / 2
        distance = (vectors - median).abs().mean(dim=0)
        rounded = torch.where(vectors > median, median + distance, median - distance)
    return vectors + (rounded - vectors).detach()


def span_contrast(vectors: Tensor, temperature: float = 1.0, normalize: bool = False) -> Tensor:
    """Return InfoNCE between the two spans of each document, the mean over spans.

    Every span is to find its partner among all other spans of the batch.
    Source: A. Liu and S. Yang (arXiv 2208.00231), eq. 8, with positives and in-batch negatives as in coCondenser.

    Args:
        vectors: [spans, dim]; rows 2i and 2i+1 come from the same document.
        temperature: Divides the scores.
        normalize: Cosines instead of inner products.

    Raises:
        ValueError: The number of spans is odd.
    """
    if len(vectors) % 2:
        raise ValueError(f"{len(vectors)} spans are not two of each document")
    if normalize:
        vectors = functional.normalize(vectors, dim=1)
    order = torch.arange(len(vectors), device=vectors.device)
    is_self = order[:, None] == order
    return info_nce(vectors @ vectors.t(), order ^ 1, temperature, is_self)


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
    """Return the KL divergence between two score distributions over the passages, or over the coordinates of embeddings.

    Sources: Starbucks (arXiv 2410.13230), eq. 5; coordinates: its released STS code.

    Args:
        teacher: Scores [queries, passages], or embeddings [texts, dim], of the size that teaches.
        student: The same of the size that learns.
        temperature: Divides both.
        excluded: Bool [queries, passages], cells that neither distribution covers.
    """
    return kl_rows(exclude(teacher / temperature, excluded), exclude(student / temperature, excluded))


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


def weighted_cross_entropy(
    rows: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocabulary: Tensor,
    bias: Tensor | None = None,
    max_logits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Σ weight · -log softmax(row @ vocabularyᵀ + bias)[target], and the unweighted losses without gradient.

    Products use autocast's precision if it is on; log-probabilities and losses are at least float32.

    Args:
        rows: [rows, width].
        targets: int64 [rows].
        weights: [rows].
        vocabulary: [words, width].
        bias: [words].
        max_logits: Logits in memory at once; a default for the device if None.

    Returns:
        The weighted sum, and losses [rows].
    """
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    limit = max_logits or _LOGITS.get(device, _LOGITS["cuda"])
    chunk = max(1, limit // len(vocabulary))
    return _WeightedCrossEntropy.apply(rows, targets, weights, vocabulary, bias, chunk, dtype, torch.is_grad_enabled())


class _WeightedCrossEntropy(torch.autograd.Function):
    """Computes the gradient together with the loss, chunk by chunk, so that logits are never stored.

    Recomputing them in the backward pass (checkpointing) needs the same memory and a third more multiplications.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        targets: Tensor,
        weights: Tensor,
        vocabulary: Tensor,
        bias: Tensor | None,
        chunk: int,
        dtype: torch.dtype,
        training: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        weights = weights.to(wide)
        losses = torch.empty(len(rows), dtype=wide, device=rows.device)
        if training:
            row_grad = torch.empty_like(rows)
            word_grad = torch.zeros_like(vocabulary)
            bias_grad = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(rows.device.type, enabled=False):
            words = vocabulary.to(dtype).t()
            for start in range(0, len(rows), chunk):
                part = slice(start, start + chunk)
                inputs, target, weight = rows[part].to(dtype), targets[part, None], weights[part, None]
                logits = inputs @ words if bias is None else torch.addmm(bias.to(dtype), inputs, words)
                log_p = torch.log_softmax(logits, dim=1, dtype=wide)
                losses[part] = -log_p.gather(1, target).squeeze(1)
                if not training:
                    continue
                # p - 1 at the target; the weights, often tiny, are multiplied after the products, where float32 has the range
                error = log_p.exp_().scatter_add_(1, target, torch.full_like(weight, -1.0))
                if bias_grad is not None:
                    bias_grad += (error.t() @ weight).squeeze(1)
                error = error.to(dtype)
                row_grad[part] = (error @ words.t()) * weight
                scaled = (rows[part] * weight).to(dtype)
                if word_grad.dtype == dtype:
                    word_grad.addmm_(error.t(), scaled)
                else:
                    word_grad += error.t() @ scaled
        losses_sum = (losses * weights).sum()
        ctx.mark_non_differentiable(losses)
        if training:
            ctx.save_for_backward(row_grad, word_grad, bias_grad)
        return losses_sum, losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        # In place, because the vocabulary's gradient is large; torch refuses a second backward pass.
        row_grad, word_grad, bias_grad = (kept if kept is None else kept.mul_(grad) for kept in ctx.saved_tensors)
        return row_grad, None, None, word_grad, bias_grad, None, None, None
