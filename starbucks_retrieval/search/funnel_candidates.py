"""The funnels among which one is chosen: their time from measured parts, their results from lists of first steps.

No funnel is searched here. Each possible first step is searched once, for the longest list, which begins with the
shorter ones; each size that can rescore is timed once. What a funnel finds are then the first passages of its last
size's own ranking that are left in the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.search.funnel import Funnel, FunnelStep, grows
from starbucks_retrieval.search.funnel_quality import CUTOFF
from starbucks_retrieval.sizes import Size

# Fetching a number by its row and scoring it exactly costs about as much as FAISS scanning this many in order:
# 13 at 768 dimensions, 16 at 128, measured on 150,000 passages.
FETCH_COST = 14

Timer = Callable[[str, Callable[[], object]], float]


def stopwatch(what: str, run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes.

    Args:
        what: Not used; tests replace this function by one that looks it up.
        run: Called once.
    """
    began = now()
    run()
    return seconds_since(began)


@dataclass(frozen=True)
class ByLength:
    """Seconds per query of a step, on the line through two measured lengths of its list.

    It never gives less than half of the time of the shorter list.

    Attributes:
        short: The shorter list: passages, and seconds per query.
        long: Likewise the longer one; it may be the same.
    """

    short: tuple[int, float]
    long: tuple[int, float]

    def __call__(self, length: int) -> float:
        (low, least), (high, most) = self.short, self.long
        return least if high == low else max(least / 2, least + (most - least) * (length - low) / (high - low))


@dataclass
class Measured:
    """What was measured.

    Attributes:
        scan: Seconds per query of a first step, by its size and code.
        rescore: Seconds per query of a later step, by its size.
        found: Rows of the longest list of each first step, best first [queries, longest].
        ends: The sizes that may be the last one; not views of wider ones, which would read as much as these do.
        keeps: Lengths of lists, ascending; none is shorter than `depth`.
        depth: Passages that a funnel ends with.
        max_steps: Steps of a funnel at most.
    """

    ends: Sequence[Size]
    keeps: Sequence[int]
    depth: int
    max_steps: int
    scan: dict[FunnelStep, ByLength] = field(default_factory=dict)
    rescore: dict[Size, ByLength] = field(default_factory=dict)
    found: dict[FunnelStep, np.ndarray] = field(default_factory=dict)

    def seconds(self, funnel: Funnel) -> float:
        """Return the estimated seconds per query."""
        first, *later = funnel.steps
        total, kept = self.scan[first_step(funnel)](first.keep or self.depth), first.keep
        for step in later:
            total, kept = total + self.rescore[step.size](kept or self.depth), step.keep
        return total

    def funnels(self) -> Iterator[Funnel]:
        """Iterate over all funnels of up to `max_steps` steps; single steps are not quantised."""
        for step in self.scan:
            if not step.code:
                yield Funnel((FunnelStep(step.size, self.depth),))
            yield from self._longer((), step)

    def _longer(self, path: tuple[FunnelStep, ...], step: FunnelStep) -> Iterator[Funnel]:
        if len(path) + 1 >= self.max_steps:
            return
        for keep in self.keeps:
            if path and keep >= (path[-1].keep or 0):
                break
            longer = (*path, replace(step, keep=keep))
            for size in self.ends:
                if grows(step.size, size) or (step.code and step.size == size):
                    yield Funnel((*longer, FunnelStep(size, self.depth)))
                    yield from self._longer(longer, FunnelStep(size))

    def results(self, funnel: Funnel) -> np.ndarray:
        """Return the first ten rows that a funnel finds, best first [queries, 10], -1 where there are fewer.

        A middle step is taken to drop passages that are not in its own longest list.
        """
        first, *later = funnel.steps
        own = self.found[first_step(funnel)]
        left = own[:, : first.keep]
        for step in later:
            ranked = self.found[FunnelStep(step.size)]
            left = _kept(ranked, left, min(step.keep or CUTOFF, CUTOFF) if step is later[-1] else step.keep or CUTOFF)
        return left[:, : min(CUTOFF, self.depth)]


def first_step(funnel: Funnel) -> FunnelStep:
    """Return the first step of a funnel without how many passages it keeps."""
    return replace(funnel.steps[0], keep=None)


def _kept(ranked: np.ndarray, left: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` of the rows of `ranked` that are in `left`, for each query."""
    kept = np.full((len(ranked), count), -1, np.int64)
    for line, (order, rows) in enumerate(zip(ranked, left)):
        present = order[np.isin(order, rows)][:count]
        kept[line, : len(present)] = present
    return kept


def cost(funnel: Funnel, count: int) -> float:
    """Return the cost of a query in numbers: all passages at the first size, then the shortlists.

    The passages that the first step keeps are scored exactly at its size too, unless it scans codes. An index is
    counted as if it read them all: how many it reads is not known.

    Args:
        funnel: The steps; each names how many passages it keeps, as `Funnel.at_depth` returns it.
        count: Passages of the corpus.

    Returns:
        Numbers that are read in order; a number of a shortlisted passage counts as `FETCH_COST` of them.
    """
    first = funnel.steps[0]
    scanned, keep = count * first.size.dim, first.keep or 0
    fetched = 0 if first.code else keep * first.size.dim
    for step in funnel.steps[1:]:
        fetched, keep = fetched + keep * step.size.dim, step.keep or 0
    return scanned + FETCH_COST * fetched


def line_of(timed: Mapping[int, float]) -> ByLength:
    """Return the line through the seconds of the shortest and of the longest list.

    Example:
        >>> line_of({10: 1.0, 110: 2.0})(60)
        1.5
    """
    low, high = min(timed), max(timed)
    return ByLength((low, timed[low]), (high, timed[high]))
