"""The precision to compute in: float32, or bfloat16 or float16 under autocast."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch.nn import functional

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
WeightsDtype = Literal["float32", "bfloat16", "float16"]
_WEIGHTS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

_MIN_SPEEDUP = 1.2  # auto takes bf16 on a measured CPU from this factor on


def weights_dtype(name: WeightsDtype, dtype: str, device: torch.device) -> torch.dtype:
    """Return the type that weights are loaded in.

    Args:
        name: The value of `--weights_dtype`.
        dtype: The value of `--dtype`.
        device: The device of the model.

    Raises:
        UserError: Weights of 16 bits are to be computed in another precision, or the device does not support it.

    Example:
        >>> weights_dtype("bfloat16", "auto", torch.device("cpu"))
        torch.bfloat16
    """
    if name == "float32":
        return torch.float32
    autocast_dtype(dtype, device, _WEIGHTS[name])
    if name == "float16" and device.type == "cpu":
        raise UserError("CPUs do not support fp16", "take --weights_dtype bfloat16 on a CPU")
    return _WEIGHTS[name]


def autocast_dtype(name: str, device: torch.device, weights: torch.dtype | None = None) -> torch.dtype | None:
    """Return the autocast dtype of a precision on a device, None for plain float32.

    auto is bf16 where the hardware is fast in it: a GPU that supports it, a CPU with AMX tiles, and a CPU that has only
    the AVX-512 instructions for it if a short measurement says so. Of two such CPUs without AMX, one (AMD EPYC) encoded
    twice as fast in bf16 and one (Intel Xeon) slower. Weights of 16 bits are computed in their own type.

    Args:
        name: A value of `Precision`, or the name of computations with weights of 16 bits: see `dtype_name`.
        device: The device.
        weights: torch.bfloat16 or torch.float16 for weights of that type.

    Raises:
        UserError: The weights have another type.

    Example:
        >>> autocast_dtype("bf16", torch.device("cpu"))
        torch.bfloat16
    """
    if weights in _WEIGHTS.values():
        if name not in ("auto", dtype_name(weights), dtype_name(weights, weights)):
            raise UserError(
                f"weights in {dtype_name(weights, weights)} are not computed in {name}",
                "leave out --dtype, or --weights_dtype",
            )
        return weights
    if name in _WEIGHTS:
        raise UserError(f"the embeddings were computed with weights in {name}", f"add --weights_dtype {name}")
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else _fast_on_this_cpu()
        return torch.bfloat16 if fast else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def dtype_name(dtype: torch.dtype | None, weights: torch.dtype | None = None) -> str:
    """Return the short name of an autocast dtype.

    Args:
        dtype: bfloat16, float16, or None for plain float32.
        weights: The type of weights of 16 bits, whose name it then is.

    Example:
        >>> dtype_name(torch.bfloat16), dtype_name(None)
        ('bf16', 'fp32')
    """
    if weights in _WEIGHTS.values():
        return str(weights).removeprefix("torch.")
    return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


@functools.cache
def _fast_on_this_cpu() -> bool:
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16"):
        return True
    return bool(capabilities.get("avx512_bf16")) and bf16_speedup() > _MIN_SPEEDUP


def bf16_speedup(turns: int = 5) -> float:
    """Measure how many times faster this CPU multiplies matrices in bf16 than in float32, by the best of some turns.

    Args:
        turns: Multiplications in each type, after a first one that warms up.

    Returns:
        The time in float32 divided by that in bf16: above 1 where bf16 is faster.
    """
    best: dict[torch.dtype, float] = {}
    for _ in range(turns + 1):  # the first one warms up
        for dtype in (torch.float32, torch.bfloat16):
            rows, weights = torch.zeros(256, 768, dtype=dtype), torch.zeros(3072, 768, dtype=dtype)
            began = now()
            functional.linear(rows, weights)
            best[dtype] = min(best.get(dtype, float("inf")), seconds_since(began))
    return best[torch.float32] / best[torch.bfloat16]
