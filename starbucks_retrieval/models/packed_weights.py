"""Linear layers in bfloat16 on CPUs: weights in the layout of oneDNN's kernels, and inputs cast once for several layers."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Arranging a weight takes as long as multiplying some hundred rows with it.
_MIN_TOKENS = 2048
_OPERATIONS = ("_reorder_linear_weight", "_linear_pointwise")
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
        a torch that lacks the operations.
    """
    weight = next(module.parameters())
    packs = (
        dtype is torch.bfloat16
        and tokens >= _MIN_TOKENS
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and not any("forward" in vars(part) for part in module.modules())  # torch.compile
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATIONS)
    )
    return _Packed() if packs else contextlib.nullcontext()


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
            layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(torch.bfloat16), _ROWS)
            cast_bias = None if bias is None else bias.detach().to(torch.bfloat16)
            self._weights[id(weight)] = weight, layout, cast_bias
        _, layout, cast_bias = self._weights[id(weight)]
        return torch.ops.mkldnn._linear_pointwise(self._cast, layout, cast_bias, "none", [], "")


def _packs(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether autocast is on, so that maps in float32 stay in it, and the weight is one of the model's own."""
    return torch.is_autocast_enabled("cpu") and isinstance(weight, nn.Parameter) and states.dim() > 1
