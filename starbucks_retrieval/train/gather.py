"""Rows of all processes in one tensor, with the gradient that a single process would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from starbucks_retrieval.trainer.processes import world


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes below each other, in the order of their ranks: [world x rows, …].

    Every process must bring as many rows. The gradient of each row is the sum over the processes of what their losses
    owe it. With gradients averaged over processes, as DDP, ZeRO and FSDP do, the step is then that of one process on
    the concatenated batch, both where each process takes the loss of its own queries and where each takes that of
    all: no factor is needed.
    """
    return _Gather.apply(rows) if rows.requires_grad else _all_rows(rows)


def gather_taps(pooled_layers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """`gather` for taps {layer: [texts, hidden]}, in one exchange."""
    stacked = gather(torch.stack(list(pooled_layers.values()), 1))
    return dict(zip(pooled_layers, stacked.unbind(1)))


def _all_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(world())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rows = len(rows)
        return _all_rows(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)  # gloo has no reduce-scatter of every kind; the taps are small
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]
