"""Batches of texts of similar length under a budget of tokens, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def token_batches(
    lengths: Sequence[int], max_tokens: int, max_rows: int | None = None, padded: bool = True
) -> list[np.ndarray]:
    """Group rows of similar length into batches, longest first.

    The batches depend on the lengths alone: the same texts always share the same batches, so a resumed job repeats an
    interrupted one bit for bit.

    Args:
        lengths: Tokens of each row.
        max_tokens: The most tokens of a batch; a longer row gets a batch of its own.
        max_rows: The most rows of a batch.
        padded: A batch has rows x longest row tokens; otherwise, the sum of its lengths.

    Returns:
        The positions of the rows of each batch, int64.

    Example:
        >>> [batch.tolist() for batch in token_batches([2, 9, 3, 8], max_tokens=18)]
        [[1, 3], [2, 0]]
        >>> [batch.tolist() for batch in token_batches([2, 9, 3, 8], max_tokens=20, padded=False)]
        [[1, 3, 2], [0]]
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    ends = np.asarray(lengths, dtype=np.int64)[order].cumsum()
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        before = ends[start] - lengths[order[start]]
        rows = max_tokens // longest if padded else int(np.searchsorted(ends, before + max_tokens, "right")) - start
        stop = start + min(max(1, rows), max_rows or len(order))
        batches.append(order[start:stop])
        start = stop
    return batches


def batch_tokens(max_tokens: int, device_type: str) -> int:
    """Return the largest rows x longest row of a batch that is fast on a device, `max_tokens` at most.

    On CPUs, products of 1,024 rows are as fast as larger ones, and smaller batches have less padding and more of their
    states in the caches. More than two threads share 512 rows each.

    Args:
        max_tokens: The limit that the user set.
        device_type: "cpu" or "cuda".

    Example:
        >>> batch_tokens(600, "cpu"), batch_tokens(65536, "cuda")
        (600, 65536)
    """
    return max_tokens if device_type != "cpu" else min(max_tokens, max(1024, 512 * torch.get_num_threads()))


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Pad rows on the right to the longest one.

    Returns:
        `input_ids` and `attention_mask`, int64 [rows, longest] each.

    Example:
        >>> pad([[5, 6], [7]], pad_id=0)["input_ids"].tolist()
        [[5, 6], [7, 0]]
    """
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(mask).to(device)}
