"""Which number format to compute in."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def choose(name: Precision, device: torch.device) -> torch.dtype | None:
    """The autocast dtype for a precision, or None for plain float32.

    auto takes bf16 where the hardware multiplies it fast: a GPU that has it, or a CPU with AMX tiles. A CPU that only
    has the AVX-512 instructions for it was measured slower in bf16 than in float32.
    """
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else _has_amx()
        return torch.bfloat16 if fast else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def _has_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


def name_of(dtype: torch.dtype | None) -> str:
    """The short name of what `choose` returned."""
    return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
