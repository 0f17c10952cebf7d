"""What repeated measurements of time say: the time itself, and whether the machine was too busy to believe it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SLOWDOWN = 1.5  # a repetition takes this many times the least one: others are using the machine
LOAD = 1.25  # processes that want to run, for each core; our own threads are one a core


def least(repetitions: Sequence[Sequence[float]]) -> float:
    """The median over texts of each one's least time: whatever disturbs a measurement makes it longer, never shorter."""
    return statistics.median(min(times) for times in repetitions)


def slowdown(repetitions: Sequence[Sequence[float]]) -> float:
    """How many times its least time a text takes as a rule: near 1 on a quiet machine."""
    return statistics.median(statistics.median(times) / max(min(times), 1e-9) for times in repetitions)


@dataclass(frozen=True)
class Quiet:
    """What is known about the machine while times were measured: `load` is the mean number of processes that want to
    run in the last minute, None where the system does not tell."""

    slowdown: float
    load: float | None
    cores: int

    @property
    def busy(self) -> str | None:
        """Why the times are not to be believed, None where nothing speaks against them."""
        reasons = []
        if self.slowdown > SLOWDOWN:
            reasons.append(f"a repetition takes {self.slowdown:.1f} times the least one")
        if self.load is not None and self.load > LOAD * self.cores:
            reasons.append(f"{self.load:.1f} processes want to run on {self.cores} cores")
        return ", and ".join(reasons) or None


def machine_load() -> tuple[float | None, int]:
    """Processes that wanted to run in the last minute, None where unknown, and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (os.getloadavg()[0] if hasattr(os, "getloadavg") else None), cores


def time_left(query_seconds: Sequence[float], queries: int, passage_seconds: Sequence[float], rounds: int) -> float:
    """Seconds that measuring takes, from one query's and one round's time at each layer."""
    return rounds * (queries * sum(query_seconds) + sum(passage_seconds))
