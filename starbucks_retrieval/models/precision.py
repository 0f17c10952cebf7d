"""Precision: dtypes by name, and bfloat16 on CPUs: whether it is fast, and linear layers on packed weights."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16", "fp16"]
WeightsDtype = Literal["float32", "bfloat16", "float16"]
_WEIGHTS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

_MIN_SPEEDUP = 1.2  # auto takes bf16 on a measured CPU from this factor on
_SLOW = 2.0  # times as long as in float32: bf16 gives a warning from this factor on


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
    twice as fast in bf16 and one (Intel Xeon) slower. Weights of 16 bits are computed in their own type. bf16 that was
    asked for on a CPU that is slow in it gives a warning.

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
        if weights is torch.bfloat16:
            warn_if_bf16_is_slow(device, "leave out --weights_dtype")
        return weights
    if name in _WEIGHTS:
        raise UserError(f"the embeddings were computed with weights in {name}", f"add --weights_dtype {name}")
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else _fast_on_this_cpu()
        return torch.bfloat16 if fast else None
    if name == "bf16":
        warn_if_bf16_is_slow(device, "take --dtype fp32")
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
def warn_if_bf16_is_slow(device: torch.device, remedy: str, backward: bool = False) -> None:
    """Warn, once in a process, if a device is a CPU that computes bf16 more slowly than float32. It is computed all the same.

    Args:
        device: The device.
        remedy: What to type for float32.
        backward: Whether gradients are computed too, which can be much slower than the forward pass.
    """
    if device.type != "cpu" or torch.cpu.get_capabilities().get("amx_bf16"):
        return
    times = 1 / bf16_speedup(turns=1, backward=backward)
    if times >= _SLOW:
        log.warning("bf16 takes about %.0f times as long as fp32 on this processor\n  try: %s", times, remedy)


@functools.cache
def _fast_on_this_cpu() -> bool:
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16"):
        return True
    return bool(capabilities.get("avx512_bf16")) and bf16_speedup() > _MIN_SPEEDUP


def bf16_speedup(turns: int = 5, backward: bool = False) -> float:
    """Measure how many times faster this CPU computes a linear layer in bf16 than in float32, by the best of some turns.

    Args:
        turns: Computations in each type, after a first one that warms up.
        backward: Whether to compute gradients too.

    Returns:
        The time in float32 divided by that in bf16: above 1 where bf16 is faster.
    """
    best: dict[torch.dtype, float] = {}
    count = 32 if backward else 256  # gradients can take seconds
    for _ in range(turns + 1):  # the first one warms up
        for dtype in (torch.float32, torch.bfloat16):
            rows, weights = torch.zeros(count, 768, dtype=dtype), torch.zeros(3072, 768, dtype=dtype)
            began = now()
            output = functional.linear(rows, weights)
            if backward:
                output @ weights, output.T @ rows
            best[dtype] = min(best.get(dtype, float("inf")), seconds_since(began))
    return best[torch.float32] / best[torch.bfloat16]


# Arranging a weight takes as long as multiplying some hundred rows with it.
_MIN_TOKENS = 2048
_OPERATIONS = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
_ROWS = 1024  # of a product that the layout is chosen for; it serves any number


def packed_weights(
    module: nn.Module, dtype: torch.dtype | None, tokens: int
) -> contextlib.AbstractContextManager[object]:
    """Return a context in which this thread's linear layers run on packed weights, where that is faster.

    Autocast casts the input of queries, keys and values three times, and oneDNN arranges the weights anew for every
    product. Here both are done once. The layers compute the same as under autocast.

    Args:
        module: The model, for which autocast is on. Its weights must not change in the context.
        dtype: The autocast dtype, or None.
        tokens: The tokens that will be computed.

    Returns:
        A context that does nothing for float32, 16-bit weights, few tokens, other devices than CPUs, compiled layers, and
        a CPU or a torch that lacks the operations.
    """
    return _Packed() if can_pack(module, dtype, tokens) else contextlib.nullcontext()


def can_pack(module: nn.Module, dtype: torch.dtype | None, tokens: int) -> bool:
    """Return whether the linear layers of a model can run on packed weights, and that saves time.

    Args:
        module: The model.
        dtype: The type to compute in; None is float32.
        tokens: The tokens that will be computed.
    """
    weight = next(module.parameters())
    return (
        dtype is torch.bfloat16
        and tokens >= _MIN_TOKENS
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and not any("forward" in vars(part) for part in module.modules())  # torch.compile
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATIONS)
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # else the two others raise
    )


def pack(weight: Tensor) -> Tensor:
    """Return a weight [outputs, inputs] in bfloat16, in oneDNN's layout for products with any number of rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(torch.bfloat16), _ROWS)


class _Packed(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        # By id; the weight itself is kept, so that no other gets its id.
        self._weights: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        self._input: tuple[Tensor, int] | None = None
        self._cast: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.linear or kwargs or not _packs(*args):
            return func(*args, **(kwargs or {}))
        states, weight, bias = (*args, None)[:3]
        # The version counts changes in place; tensors of inference mode have none.
        known = None if states.is_inference() else (states, states._version)
        if known is None or self._input is None or known[0] is not self._input[0] or known[1] != self._input[1]:
            self._input, self._cast = known, states.to(torch.bfloat16)
        if id(weight) not in self._weights:
            layout = pack(weight)
            cast_bias = None if bias is None else bias.detach().to(torch.bfloat16)
            self._weights[id(weight)] = weight, layout, cast_bias
        _, layout, cast_bias = self._weights[id(weight)]
        return torch.ops.mkldnn._linear_pointwise(self._cast, layout, cast_bias, "none", [], "")


def _packs(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether autocast is on, so that maps in float32 stay in it, and the weight is one of the model's own."""
    return torch.is_autocast_enabled("cpu") and isinstance(weight, nn.Parameter) and states.dim() > 1
