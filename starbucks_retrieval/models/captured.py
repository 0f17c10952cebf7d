"""State of a model that several threads use at once: the layers that a forward pass captures, and a lock."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class CapturedLayers(threading.local):
    """The layers whose outputs the forward pass of this thread captures, and the outputs so far.

    A thread-local state lets one model serve several threads at once.

    Attributes:
        layers: The layers to capture.
        states: {layer: token states or pooled output} of those that have run.
        finish: Turns the token states [batch, tokens, hidden] of a layer into its pooled output.
        first_only: Compute the deepest layer for the first token alone where pooling takes no other.
    """

    def __init__(self) -> None:
        self.layers: set[int] = set()
        self.states: dict[int, Tensor] = {}
        self.finish: Callable[[Tensor], Tensor] = _unchanged
        self.first_only = False

    @contextlib.contextmanager
    def shortened(self) -> Iterator[None]:
        """Set `first_only` during passes of this thread."""
        self.first_only = True
        try:
            yield
        finally:
            self.first_only = False

    @contextlib.contextmanager
    def collect(self, layers: set[int], finish: Callable[[Tensor], Tensor]) -> Iterator[dict[int, Tensor]]:
        """Capture layers during one forward pass of this thread; yields the dictionary that it fills.

        Args:
            layers: The layers whose outputs are captured; 0 is the output of the embedding layer.
            finish: Turns the token states [batch, tokens, hidden] of a layer into its pooled output. While gradients
                are recorded it is not called, and the dictionary holds token states.

        Yields:
            {layer: pooled output, or token states}, empty before the pass.
        """
        self.layers, self.states, self.finish = layers, {}, finish
        try:
            yield self.states
        finally:
            self.layers, self.states, self.finish = set(), {}, _unchanged

    def add(self, layer: int, hidden: Tensor) -> None:
        """Take the token states of a layer that has just run, if it is one of those to capture."""
        if layer in self.layers:
            # In training the state is kept unchanged: an operation here would be part of a checkpointed layer, and would
            # be missing when that layer is recomputed. Otherwise it is pooled at once, so that its memory can be freed.
            self.states[layer] = hidden if torch.is_grad_enabled() else self.finish(hidden)

    def __reduce__(self) -> Any:
        return (CapturedLayers, ())  # a copied model starts with nothing captured


class CopyableLock:
    """A lock; a copied or unpickled model gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def __reduce__(self) -> Any:
        return (CopyableLock, ())


def _unchanged(hidden: Tensor) -> Tensor:
    return hidden
