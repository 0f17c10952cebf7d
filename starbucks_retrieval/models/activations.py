"""Keep fewer activations for the backward pass in 16 bits: equal casts once, and no outputs of GELU and SiLU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers.activations import ACT2FN

_RECOMPUTED = tuple({type(ACT2FN[name]) for name in ("gelu", "gelu_pytorch_tanh", "silu", "swish")})


@contextlib.contextmanager
def keep_fewer_activations(backbone: nn.Module) -> Iterator[None]:
    """Keep less for the backward pass of a model under bf16 autocast on a CPU; gradients are the same to the bit.

    The output of GELU or SiLU, which the next product needs, is computed again from their input, which their own gradient
    needs. Of the casts of one input, as of queries, keys and values under autocast, one is kept. In float32, nothing changes.

    Args:
        backbone: A model of transformers that is not compiled. It is not run within `torch.utils.checkpoint` in the context.
    """
    if not (torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()):
        yield
        return
    kept = _Kept()
    with contextlib.ExitStack() as stack:
        stack.callback(kept.clear)  # the graph holds the hooks
        for module in backbone.modules():
            if isinstance(module, _RECOMPUTED):
                stack.callback(module.register_forward_hook(kept.remember).remove)
        stack.enter_context(saved_tensors_hooks(kept.pack, _unpack))
        yield


@dataclass(frozen=True)
class _Recomputed:
    function: Callable[[Tensor], Tensor]
    input: Tensor
    shape: torch.Size


class _Kept:
    def __init__(self) -> None:
        # The last output is held, so that no other tensor gets its address.
        self._last: tuple[nn.Module, Tensor, Tensor] | None = None
        self._by_shape: dict[torch.Size, Tensor] = {}

    def clear(self) -> None:
        self._last = None
        self._by_shape.clear()

    def remember(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._last = module, inputs[0].detach(), output.detach()

    def pack(self, tensor: Tensor) -> Tensor | _Recomputed:
        if tensor.dtype is not torch.bfloat16 or not tensor.is_contiguous():
            return tensor
        if self._last is not None:
            module, states, output = self._last
            if tensor.data_ptr() == output.data_ptr() and tensor.numel() == output.numel():
                return _Recomputed(module.forward, states, tensor.shape)
        known = self._by_shape.get(tensor.shape)
        if known is None or not torch.equal(known, tensor):
            known = self._by_shape[tensor.shape] = tensor
        return known


def _unpack(kept: Any) -> Tensor:
    if isinstance(kept, _Recomputed):
        return kept.function(kept.input).view(kept.shape)
    return kept
