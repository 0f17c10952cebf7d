"""The precision to compute in: float32, or bfloat16 or float16 under autocast."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch.nn import functional

from starbucks_retrieval.clock import now, seconds_since

Precision = Literal["auto", "fp32", "bf16", "fp16"]

_MIN_SPEEDUP = 1.2  # auto takes bf16 on a measured CPU from this factor on


def autocast_dtype(name: Precision, device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype of a precision on a device, None for plain float32.

    auto is bf16 where the hardware is fast in it: a GPU that supports it, a CPU with AMX tiles, and a CPU that has only
    the AVX-512 instructions for it if a short measurement says so. Of two such CPUs without AMX, one (AMD EPYC) encoded
    twice as fast in bf16 and one (Intel Xeon) slower.

    Example:
        >>> autocast_dtype("bf16", torch.device("cpu"))
        torch.bfloat16
    """
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else _fast_on_this_cpu()
        return torch.bfloat16 if fast else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the short name of an autocast dtype.

    Args:
        dtype: bfloat16, float16, or None for plain float32.

    Example:
        >>> dtype_name(torch.bfloat16), dtype_name(None)
        ('bf16', 'fp32')
    """
    return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


@functools.cache
def _fast_on_this_cpu() -> bool:
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16"):
        return True
    return bool(capabilities.get("avx512_bf16")) and bf16_speedup() > _MIN_SPEEDUP


def bf16_speedup(turns: int = 5) -> float:
    """Measure how many times faster this CPU multiplies matrices in bf16 than in float32, by the best of some turns."""
    best: dict[torch.dtype, float] = {}
    for _ in range(turns + 1):  # the first one warms up
        for dtype in (torch.float32, torch.bfloat16):
            rows, weights = torch.zeros(256, 768, dtype=dtype), torch.zeros(3072, 768, dtype=dtype)
            began = now()
            functional.linear(rows, weights)
            best[dtype] = min(best.get(dtype, float("inf")), seconds_since(began))
    return best[torch.float32] / best[torch.bfloat16]
