"""Training in several processes: their number, work of the first one, and tensors gathered from all of them."""

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
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first_process(work: Callable[[], T]) -> T:
    """Call `work` in the first process only, and return its result in every process.

    Args:
        work: A function whose result can be pickled. Every process must come to this call.

    Example:
        >>> first_process(lambda: "read once")
        'read once'
    """
    result = [work() if rank() == 0 else None]
    if world() > 1:
        dist.broadcast_object_list(result, src=0)
    return result[0]  # type: ignore[return-value]


def shutdown() -> None:
    """Leave the process group once every process has called this function."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
        # Torch keeps threads of a gloo group that DDP has used. A thread that frees its last tensor needs the
        # interpreter, and aborts the process if the interpreter has already ended.
        time.sleep(0.1)


def gather(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes, in the order of their ranks, with gradients.

    The gradient of a row is the sum of its gradients in all processes. DDP, ZeRO and FSDP average gradients over
    processes, so the step equals that of one process on the concatenated batch without a factor, whether each process
    computes the loss of its own queries or of all queries.

    Args:
        rows: [rows, …], with the same shape in every process.

    Returns:
        [processes x rows, …].
    """
    return _Gather.apply(rows) if rows.requires_grad else _all_rows(rows)


def gather_layers(pooled_layers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Apply `gather` to the pooled outputs of several layers, in one exchange.

    Args:
        pooled_layers: {layer: [texts, hidden]}, with the same layers and shapes in every process.

    Returns:
        {layer: [processes x texts, hidden]}.
    """
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
        dist.all_reduce(total)  # gloo has no reduce-scatter of every kind; pooled outputs are small
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]
