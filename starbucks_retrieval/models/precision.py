"""Which number format to compute in."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch.nn import functional

from starbucks_retrieval.clock import now, seconds_since

Precision = Literal["auto", "fp32", "bf16", "fp16"]

_WORTH = 1.2  # how many times faster bf16 must be to be taken


def choose(name: Precision, device: torch.device) -> torch.dtype | None:
    """The autocast dtype for a precision, or None for plain float32.

    auto takes bf16 where the hardware multiplies it fast: a GPU that has it, a CPU with AMX tiles, and a CPU with only the
    AVX-512 instructions for it if a moment's measurement says so. Of two such CPUs without AMX, one (AMD EPYC) encoded
    twice as fast in bf16 and one (Intel Xeon) slower.
    """
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else _fast_on_this_cpu()
        return torch.bfloat16 if fast else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


@functools.cache
def _fast_on_this_cpu() -> bool:
    able = torch.cpu.get_capabilities()
    return bool(able.get("amx_bf16")) or (bool(able.get("avx512_bf16")) and speedup() > _WORTH)


def speedup(turns: int = 5) -> float:
    """How many times faster this CPU multiplies in bf16 than in float32, by the best of a few turns."""
    best: dict[torch.dtype, float] = {}
    for _ in range(turns + 1):  # the first one warms up
        for dtype in (torch.float32, torch.bfloat16):
            rows, weights = torch.zeros(256, 768, dtype=dtype), torch.zeros(3072, 768, dtype=dtype)
            began = now()
            functional.linear(rows, weights)
            best[dtype] = min(best.get(dtype, float("inf")), seconds_since(began))
    return best[torch.float32] / best[torch.bfloat16]


def name_of(dtype: torch.dtype | None) -> str:
    """The short name of what `choose` returned."""
    return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
