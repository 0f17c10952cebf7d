"""Cross-entropy over a whole vocabulary at a few positions of a text, without keeping logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from starbucks_retrieval.losses.functional import info_nce

IGNORED = -100

# Logits that exist at once: enough rows to keep a processor's matrix units busy, and no more.
_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}


@dataclass(frozen=True)
class Term:
    """One mean of the loss: its name, its vectors [targets, width], the tokens to predict [targets], and its weight."""

    name: str
    rows: Tensor
    targets: Tensor
    weight: float


def mean_cross_entropies(
    terms: Sequence[Term], vocabulary: nn.Linear, max_logits: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Σ weight · (mean over a term's targets of -log p(target)), and each term's own mean by name; 0 without targets.

    All terms share the products with the vocabulary, at most `max_logits` logits at a time.
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
    """Σ weight · -log softmax(row @ vocabularyᵀ + bias)[target], and the unweighted losses [rows], without gradient.

    rows [rows, width], targets and weights [rows], vocabulary [words, width], bias [words]. Products run in autocast's
    format where it is on; log-probabilities and losses are float32 at least.
    """
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    limit = max_logits or _LOGITS.get(device, _LOGITS["cuda"])
    chunk = max(1, limit // len(vocabulary))
    return _WeightedCrossEntropy.apply(rows, targets, weights, vocabulary, bias, chunk, dtype, torch.is_grad_enabled())


class _WeightedCrossEntropy(torch.autograd.Function):
    """The gradient of a cross-entropy is known with its logits, so it is taken at once and the logits are dropped.

    Recomputing them in the backward pass (checkpointing) would need the same memory and a third more multiplications.
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
                some = slice(start, start + chunk)
                these, target, weight = rows[some].to(dtype), targets[some, None], weights[some, None]
                logits = these @ words if bias is None else torch.addmm(bias.to(dtype), these, words)
                log_p = torch.log_softmax(logits, dim=1, dtype=wide)
                losses[some] = -log_p.gather(1, target).squeeze(1)
                if not training:
                    continue
                # p - 1 at the target; the weights, often tiny, are multiplied with what has range to spare
                error = log_p.exp_().scatter_add_(1, target, torch.full_like(weight, -1.0))
                if bias_grad is not None:
                    bias_grad += (error.t() @ weight).squeeze(1)
                error = error.to(dtype)
                row_grad[some] = (error @ words.t()) * weight
                scaled = (rows[some] * weight).to(dtype)
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
        # In place: the vocabulary's is large. A second pass over a kept graph is refused by torch, not wrong.
        row_grad, word_grad, bias_grad = (kept if kept is None else kept.mul_(grad) for kept in ctx.saved_tensors)
        return row_grad, None, None, word_grad, bias_grad, None, None, None


def span_contrast(vectors: Tensor, temperature: float = 1.0, normalize: bool = False) -> Tensor:
    """InfoNCE between the two spans of each document, rows 2i and 2i+1 of vectors [spans, dim].

    Every span looks for its partner among all other spans of the batch; the loss is the mean over spans.
    Source: A. Liu and S. Yang (arXiv 2208.00231), eq. 8, with positives and in-batch negatives as in coCondenser.
    """
    if len(vectors) % 2:
        raise ValueError(f"{len(vectors)} spans are not two of each document")
    if normalize:
        vectors = nn.functional.normalize(vectors, dim=1)
    order = torch.arange(len(vectors), device=vectors.device)
    itself = order[:, None] == order
    return info_nce(vectors @ vectors.t(), order ^ 1, temperature, itself)
