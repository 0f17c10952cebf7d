"""The funnels among which one is chosen: their time from measured parts, what they find from lists, and how good that is.

No funnel is searched here. Each possible first step is searched once, for the longest list, which begins with the
shorter ones; each size that can rescore is timed once. What a funnel finds are then the first passages of its last
size's own ranking that are left in the lists. How good ten results are is nDCG@10 by judgements, or agreement with the
exact ten best of the full size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.funnel import Funnel, FunnelStep, grows
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

CUTOFF = 10
# One-sided bound at 95 % of the difference between a mean over the queries at hand and one over as many others:
# 1.645 standard errors × √2.
MARGIN = 2.33

Qrels = Mapping[str, Mapping[str, int]]


class Quality(Protocol):
    """Scores results.

    Attributes:
        name: The name of the score, such as nDCG@10.
    """

    name: str

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return a score from 0 to 1 for every query.

        Args:
            rows: Rows of the passages [queries, up to 10], best first; -1 stands for none.

        Returns:
            [queries] float64.
        """
        ...


def lower_share(scores: np.ndarray, full: np.ndarray, margin: float = MARGIN) -> float:
    """Return a lower bound of the share of the full size's quality that a funnel keeps on other queries like these.

    Args:
        scores: Of the funnel [queries].
        full: Of the full size, for the same queries.
        margin: Standard errors to subtract from the share of these queries.

    Example:
        >>> full = np.ones(100)
        >>> lower_share(full, full), round(lower_share(np.arange(100) > 0, full), 3)
        (1.0, 0.967)
    """
    share = scores.sum() / full.sum()
    if len(full) < 2:
        return float(share)
    error = np.std(scores - share * full, ddof=1) / (full.mean() * np.sqrt(len(full)))
    return float(share - margin * error)


class JudgedQuality:
    """nDCG@10 with linear gains, as in trec_eval.

    Args:
        judgements: {docid: grade} for each query, in the order of the results to score. Grades above 0 are relevant;
            relevant documents that are not among the passages count in the ideal ranking.
        store: The passages, whose ids are read once.

    Raises:
        UserError: No relevant document is among the passages.
    """

    name = "nDCG@10"

    def __init__(self, judgements: Sequence[Mapping[str, int]], store: EmbeddingStore) -> None:
        wanted = {docid for grades in judgements for docid, grade in grades.items() if grade > 0}
        rows: dict[str, int] = {}
        for start in range(0, store.count, 65536):
            block = np.arange(start, min(start + 65536, store.count))
            rows.update((docid, row) for docid, row in zip(store.ids(block), block.tolist()) if docid in wanted)
        if not rows:
            raise UserError(
                f"none of the {len(wanted)} relevant documents of the qrels is among the passages: their ids are like "
                f"{example(wanted)}, those of the passages like {store.ids(np.array([0]))[0]!r}",
                "give the qrels of this corpus",
            )
        self._gains = [
            {rows[docid]: grade for docid, grade in grades.items() if grade > 0 and docid in rows}
            for grades in judgements
        ]
        discounts = 1 / np.log2(np.arange(2, CUTOFF + 2))
        ideal = [sorted((grade for grade in grades.values() if grade > 0), reverse=True) for grades in judgements]
        best = np.array([np.dot(line[:CUTOFF], discounts[: len(line)]) for line in ideal])
        self._discounts = discounts
        self._scale = np.divide(1, best, out=np.zeros(len(best)), where=best > 0)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """As `Quality.scores`."""
        gains = [[of_query.get(row, 0) for row in line] for of_query, line in zip(self._gains, rows.tolist())]
        return np.array(gains, float) @ self._discounts[: rows.shape[1]] * self._scale


class Agreement:
    """The share of the ten best passages of exact search at the full size that the results have.

    Args:
        exact: Their rows [queries, up to 10].
    """

    name = "agreement@10"

    def __init__(self, exact: np.ndarray) -> None:
        self._exact = exact

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """As `Quality.scores`."""
        return (self._exact[:, :, None] == rows[:, None, :]).any(axis=2).mean(axis=1)


def example(names: Iterable[str]) -> str:
    """Return the first of some names, quoted, for a message."""
    return repr(next(iter(names), ""))


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
    """Seconds per query of a step, on the line through the times of its shortest and of its longest list.

    It never gives less than half of the time of the shortest list.

    Args:
        timed: {passages of a list: seconds per query}.

    Example:
        >>> ByLength({10: 1.0, 110: 2.0})(60)
        1.5
    """

    timed: Mapping[int, float]

    def __call__(self, length: int) -> float:
        low, high = min(self.timed), max(self.timed)
        least, most = self.timed[low], self.timed[high]
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
