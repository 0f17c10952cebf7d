"""Elapsed seconds that rates can be divided by."""

from __future__ import annotations

import time

LEAST = 1e-9  # seconds; some systems' clocks return the same reading for milliseconds
LAYER_SECONDS = 0.6  # seconds for which a layer of a model is timed before a command


def now() -> float:
    """Return a reading of the clock, for `seconds_since`."""
    return time.perf_counter()


def seconds_since(reading: float) -> float:
    """Return the seconds since a reading of `now`.

    Returns:
        At least 1e-9, because rates divide by it.
    """
    return max(LEAST, time.perf_counter() - reading)
