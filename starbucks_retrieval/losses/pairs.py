"""Losses over pairs that are ordered by similarity: CoSENT and the angle loss.

A pair is a query and one passage of its own group. Scored pairs bring their labels; in groups of a positive and hard
negatives, the positive pair has the label 1 and the others 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starbucks_retrieval.losses.batch import Batch, BatchViews
from starbucks_retrieval.sizes import Size


def cosent(labels: Tensor, similarities: Tensor, temperature: float) -> Tensor:
    """Return log(1 + Σ exp((s_i - s_j) / temperature)) over all pairs with label i < label j.

    Args:
        labels: How alike the texts of each pair are, [pairs].
        similarities: The model's similarity of each pair, [pairs].
        temperature: Divides the differences.

    Example:
        >>> cosent(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), 0.05)  # one pair of pairs, tied: log 2
        tensor(0.6931)
    """
    worse = labels[:, None] < labels[None, :]
    gaps = (similarities[:, None] - similarities[None, :])[worse] / temperature
    return torch.cat([gaps.new_zeros(1), gaps]).logsumexp(0)


def angle_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Return |cos(x, y) + (b·c - a·d) / (|x||y|)|, where x = (a, b) and y = (c, d) are split in two at the middle.

    The two parts are read as real and imaginary: this is x / y without its modulus, both parts summed.
    Source: AnglE (arXiv 2309.12871), with the sign of its code: larger is more alike.

    Args:
        x: Embeddings [pairs, dim]; dim is even.
        y: Embeddings of the same shape.

    Returns:
        [pairs].

    Example:
        >>> angle_similarity(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
        tensor([1.])
    """
    (a, b), (c, d) = x.chunk(2, 1), y.chunk(2, 1)
    lengths = x.norm(dim=1).clamp(min=1e-12) * y.norm(dim=1).clamp(min=1e-12)
    return ((a * c + b * d + b * c - a * d).sum(1) / lengths).abs()


def pair_losses(views: BatchViews, size: Size, angle_weight: float, cosent_weight: float, temperature: float) -> Tensor:
    """Return angle_weight · angle loss + cosent_weight · CoSENT of the pairs of a batch at one size.

    Args:
        views: The batch. A pair is a query and one passage of its own group.
        size: The size; the angle loss needs an even dim.
        angle_weight: The weight of the angle loss; 0 leaves it out.
        cosent_weight: The weight of CoSENT on the scores of `views`; 0 leaves it out.
        temperature: Divides the differences of similarities, in both losses.

    Returns:
        A scalar tensor; 0 if both weights are 0.
    """
    batch = views.batch
    columns = batch.group_columns
    labels = pair_labels(batch).flatten()
    total = views.queries(size).new_zeros(())
    if cosent_weight:
        similarities = views.scores(size).gather(1, columns).flatten()
        total = total + cosent_weight * cosent(labels, similarities, temperature)
    if angle_weight:
        x = views.queries(size).repeat_interleave(columns.shape[1], dim=0)
        similarities = angle_similarity(x, views.passages(size)[columns.flatten()])
        total = total + angle_weight * cosent(labels, similarities, temperature)
    return total


def pair_labels(batch: Batch) -> Tensor:
    """Return the label of each query with each passage of its group: [queries, group].

    Args:
        batch: The batch. Without labels, the positive has 1 and the others of its group 0.

    Example:
        >>> pair_labels(Batch({1: torch.ones(1, 2)}, {1: torch.ones(3, 2)})).tolist()
        [[1.0, 0.0, 0.0]]
    """
    if batch.labels is not None:
        return batch.labels[:, None]
    labels = torch.zeros(batch.group_columns.shape, device=batch.group_columns.device)
    labels[:, 0] = 1
    return labels
