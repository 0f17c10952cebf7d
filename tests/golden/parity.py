"""Helpers of the golden tests."""

from __future__ import annotations

import torch

from starbucks_retrieval.losses.batch import Batch
from starbucks_retrieval.sizes import Size, Sizes

TOLERANCE = {"rtol": 0, "atol": 1e-6}


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), tensor(expected), **TOLERANCE)


def model_sizes(pairs) -> Sizes:
    return Sizes([Size(index + 1, dim) for index, dim in pairs])  # the vectors count their list entries from 0


def pooled_layers(values, requires_grad=False) -> dict[int, torch.Tensor]:
    return {i + 1: tensor(rows).requires_grad_(requires_grad) for i, rows in enumerate(values)}


def columns_batch(columns) -> Batch:
    """A batch from text columns [anchor, positive, negative, …], each a list over layers of [texts, hidden]."""
    anchors, *others = (pooled_layers(column) for column in columns)
    # anchor i's group is its positive followed by its negatives
    passages = {n: torch.stack([column[n] for column in others], 1).flatten(0, 1) for n in anchors}
    return Batch(anchors, passages)
