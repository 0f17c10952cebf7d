"""Losses of pre-training: cross-entropy over the vocabulary without storing logits, and contrast of spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from starbucks_retrieval.losses.functional import info_nce

IGNORED = -100

# Logits in memory at once: enough rows to keep the processor's matrix units busy.
_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}


@dataclass(frozen=True)
class Term:
    """One mean of the loss.

    Attributes:
        name: In logs, such as `enc/2:32`.
        rows: [targets, width], vectors that are multiplied with the vocabulary.
        targets: int64 [targets], tokens to predict.
        weight: Of this mean in the loss.
    """

    name: str
    rows: Tensor
    targets: Tensor
    weight: float


def mean_cross_entropies(
    terms: Sequence[Term], vocabulary: nn.Linear, max_logits: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of the terms' mean cross-entropies, and each term's mean by name; 0 without targets.

    Args:
        terms: All terms are multiplied with the vocabulary together.
        vocabulary: The output layer of the language-modelling head.
        max_logits: Logits in memory at once; a default for the device if None.
    """
    rows, targets = torch.cat([term.rows for term in terms]), torch.cat([term.targets for term in terms])
    counts = [len(term.targets) for term in terms]
    shares = torch.tensor([term.weight / max(count, 1) for term, count in zip(terms, counts)], dtype=torch.float64)
    weights = shares.repeat_interleave(torch.tensor(counts)).to(rows.device)
    total, losses = weighted_cross_entropy(rows, targets, weights, vocabulary.weight, vocabulary.bias, max_logits)
    means = [part.sum() / max(len(part), 1) for part in losses.split(counts)]
    return total, {term.name: mean for term, mean in zip(terms, means)}


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
        vectors = nn.functional.normalize(vectors, dim=1)
    order = torch.arange(len(vectors), device=vectors.device)
    is_self = order[:, None] == order
    return info_nce(vectors @ vectors.t(), order ^ 1, temperature, is_self)
