"""What lets one model serve several threads at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import Tensor


class CapturedLayers(threading.local):
    """What the forward pass running in this thread wants from the layers below its deepest one."""

    def __init__(self) -> None:
        self.layers: set[int] = set()
        self.states: dict[int, Tensor] = {}
        self.finish: Any = None

    @contextlib.contextmanager
    def collect(self, layers: set[int], finish: Any) -> Iterator[dict[int, Tensor]]:
        self.layers, self.states, self.finish = layers, {}, finish
        try:
            yield self.states
        finally:
            self.layers, self.states, self.finish = set(), {}, None

    def __reduce__(self) -> Any:
        return (CapturedLayers, ())  # copies of a model start with nothing asked


class Lock:
    """A lock that a copied model gets anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def __reduce__(self) -> Any:
        return (Lock, ())
