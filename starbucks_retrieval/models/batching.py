"""Batches of texts of similar length under a budget of tokens, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def token_batches(lengths: Sequence[int], max_tokens: int, max_rows: int | None = None) -> list[np.ndarray]:
    """Group rows, longest first, so that rows x longest of each batch is at most `max_tokens`, its rows `max_rows`.

    A single row longer than the budget gets a batch of its own. The result depends on the lengths alone: the same
    texts always meet in the same batches, which makes interrupted work repeat bit for bit.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = max(1, max_tokens // longest)
        stop = start + min(rows, max_rows or rows)
        batches.append(order[start:stop])
        start = stop
    return batches


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Right-padded input_ids and attention_mask, both [rows, longest]."""
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(mask).to(device)}
