"""Seconds that things took, as what rates are divided by."""

from __future__ import annotations

import time

_LEAST = 1e-9  # the finest step of the clocks; on some systems a reading stands still for milliseconds


def now() -> float:
    """A reading of the clock that `seconds_since` understands."""
    return time.perf_counter()


def seconds_since(reading: float) -> float:
    """Seconds since a reading of `now`: above 0 even where the clock has not moved, because rates divide by it."""
    return max(_LEAST, time.perf_counter() - reading)
