"""Loops over single numbers that Numba compiles, where it is installed: NumPy passes over the same memory several times.

Results are the same with and without it. Nothing is kept on disk: Numba's cache is a pickle.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
from types import ModuleType

_WORTH_COMPILING = 2_000_000_000  # numbers for which loops save about the two seconds that compiling them takes

log = logging.getLogger(__name__)
_lock = threading.Lock()
_read = 0  # numbers, by this process
_compiled: ModuleType | None = None
_available = importlib.util.find_spec("numba") is not None


def will_be_compiled(numbers: int) -> bool:
    """Return whether `compiled_loops` would return loops for so many numbers."""
    return _compiled is not None or (_available and _read + numbers >= _WORTH_COMPILING)


def compiled_loops(numbers: int) -> ModuleType | None:
    """Return the compiled loops, or None if Numba is not installed or this process has read too few numbers for them.

    Args:
        numbers: How many the caller is about to read; those of all calls add up.

    Example:
        >>> compiled_loops(1000) is None or compiled_loops(0).__name__
        True
    """
    global _read, _compiled, _available
    # While one thread compiles, the others go on without.
    if _compiled is None and will_be_compiled(numbers) and _lock.acquire(blocking=False):
        try:
            _compiled = importlib.import_module("starbucks_retrieval.search.compiled")
        except ImportError as problem:  # such as a version of NumPy that Numba does not know yet
            log.debug("exact search without compiled loops: %s", problem)
            _available = False
        finally:
            _lock.release()
    _read += numbers
    return _compiled
