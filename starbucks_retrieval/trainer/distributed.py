"""Training in several processes: the group of processes, and tensors gathered from all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first_process(work: Callable[[], T]) -> T:
    """The result of `work`, done by the first process alone and told to the others."""
    found = [work() if rank() == 0 else None]
    if world() > 1:
        dist.broadcast_object_list(found, src=0)
    return found[0]  # type: ignore[return-value]


def shutdown() -> None:
    """End this process' part in the group, once all others have come here."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
        # Torch keeps threads of a gloo group that DDP has used. One that lets go of its last tensor needs the
        # interpreter for a moment, and aborts the process if that is already going down.
        time.sleep(0.1)


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
