"""Several processes that train together."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

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
