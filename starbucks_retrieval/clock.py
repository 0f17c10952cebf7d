"""Elapsed seconds that rates can be divided by."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def fastest(run: Callable[[], object], budget: float | None = None, clock: Callable[[], float] = now) -> float:
    """Return the seconds of the fastest of several calls.

    Args:
        run: What is timed.
        budget: Seconds of the clock after which no other call begins. None: `LAYER_SECONDS`.
        clock: Returns seconds; `time.process_time` counts those of the processor.
    """
    best, stop = float("inf"), clock() + (LAYER_SECONDS if budget is None else budget)
    while best == float("inf") or clock() < stop:
        began = clock()
        run()
        best = min(best, max(LEAST, clock() - began))
    return best
