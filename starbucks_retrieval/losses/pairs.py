"""Losses over pairs with an order of similarity: CoSENT and the angle loss.

A pair is a query with one passage of its own group. Scored pairs bring their labels; in groups of a positive and hard
negatives the positive pair counts 1 and the others 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starbucks_retrieval.losses.batch import Batch, Views
from starbucks_retrieval.sizes import Size


def cosent(labels: Tensor, similarities: Tensor, temperature: float) -> Tensor:
    """log(1 + Σ exp((s_i - s_j) / temperature)) over all pairs with label i < label j; both arguments [pairs]."""
    worse = labels[:, None] < labels[None, :]
    gaps = (similarities[:, None] - similarities[None, :])[worse] / temperature
    return torch.cat([gaps.new_zeros(1), gaps]).logsumexp(0)


def angle_similarity(x: Tensor, y: Tensor) -> Tensor:
    """|cos(x, y) + (b·c - a·d) / (|x||y|)| with x = (a, b) and y = (c, d) halves of the rows [pairs, dim]: [pairs].

    The halves are read as real and imaginary parts; x / y without its modulus, both parts summed. dim must be even.
    Source: AnglE (arXiv 2309.12871), with the sign of its code: larger is more alike.
    """
    (a, b), (c, d) = x.chunk(2, 1), y.chunk(2, 1)
    lengths = x.norm(dim=1).clamp(min=1e-12) * y.norm(dim=1).clamp(min=1e-12)
    return ((a * c + b * d + b * c - a * d).sum(1) / lengths).abs()


def pair_losses(views: Views, size: Size, angle_weight: float, cosent_weight: float, temperature: float) -> Tensor:
    """angle_weight · angle loss + cosent_weight · CoSENT of the batch's own pairs at a size."""
    batch = views.batch
    own = batch.own
    labels = pair_labels(batch).flatten()
    total = views.queries(size).new_zeros(())
    if cosent_weight:
        similarities = views.scores(size).gather(1, own).flatten()
        total = total + cosent_weight * cosent(labels, similarities, temperature)
    if angle_weight:
        x = views.queries(size).repeat_interleave(own.shape[1], dim=0)
        similarities = angle_similarity(x, views.passages(size)[own.flatten()])
        total = total + angle_weight * cosent(labels, similarities, temperature)
    return total


def pair_labels(batch: Batch) -> Tensor:
    """How alike each query and each passage of its group are: [queries, group]."""
    if batch.labels is not None:
        return batch.labels[:, None]
    labels = torch.zeros(batch.own.shape, device=batch.own.device)
    labels[:, 0] = 1
    return labels
