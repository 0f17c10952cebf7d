"""Trials: searching and timing first steps, later steps and whole funnels over some queries."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.float16_scan import hold
from starbucks_retrieval.search.funnel import CODES, NUMBERS, Funnel, FunnelStep
from starbucks_retrieval.search.funnel_candidates import CUTOFF, ByLength, Measured, Timer, first_step
from starbucks_retrieval.search.funnel_first_steps import IndexStep, code_shortlister, index_flags
from starbucks_retrieval.search.funnel_search import Shortlister, funnel_search, rescore
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

CODED_DIMS = (64, 128, 256, 512, 1024)  # and the full dim: learning codes takes seconds
TIMED = 64  # queries that are timed at most


def first_steps(sizes: Sequence[Size], codes: Iterable[str]) -> list[FunnelStep]:
    """Return what a funnel may scan first: every size, and codes of some dims of the deepest layer.

    Args:
        sizes: Ascending, so that the last one is of the deepest layer.
        codes: Names of `CODES`; one that packs several numbers is left out for dims that they do not divide.

    Returns:
        Steps that do not say how many passages they keep: those without a code, then those with one.
    """
    full, names = sizes[-1], list(codes)
    coded = [size for size in sizes if size.layer == full.layer and size.dim in (*CODED_DIMS, full.dim)]
    steps = [FunnelStep(size, code=code) for size in coded for code in names if size.dim % NUMBERS.get(code, 1) == 0]
    return [*map(FunnelStep, sizes), *steps]


class Trials:
    """Searches and times steps and funnels over some queries. Vectors of one first step are held at a time.

    Args:
        queries: [queries, dim] for each size, in the same order.
        stores: The passages at each size.
        options: Arguments of `funnel_search` by name: `batch_size`, `max_memory`, `threads` and `generator`.
        seed: Draws the passages that codes learn from.

    Attributes:
        count: Number of queries.
        timed: Queries that are timed: the first ones.
        batch: Queries that are searched at once while they are timed.
    """

    def __init__(
        self, queries: Mapping[Size, np.ndarray], stores: Mapping[Size, EmbeddingStore], options: dict, seed: int
    ) -> None:
        self.queries, self.stores, self.options, self.seed = queries, stores, options, seed
        self.count = len(next(iter(queries.values())))
        self.timed = min(self.count, TIMED)
        batch_size = options["batch_size"]
        self.batch = min(batch_size, self.timed) if batch_size > 0 else self.timed
        self._codes: dict[FunnelStep, Shortlister] = {}
        self._held: tuple[Size, EmbeddingStore] | None = None

    def _arguments(self, funnel: Funnel) -> tuple[dict[Size, EmbeddingStore], Shortlister | None]:
        """Return the stores of a funnel, with that of an exact first step in memory, and the codes of another."""
        step, stores = first_step(funnel), dict(self.stores)
        limits = {name: self.options[name] for name in ("max_memory", "threads")}
        if isinstance(step, IndexStep):
            return stores, step.shortlister(**limits)
        if step.code:
            if step not in self._codes:
                self._codes[step] = code_shortlister(step, stores[step.size], seed=self.seed, **limits)
            return stores, self._codes[step]
        if self._held is None or self._held[0] != step.size:
            self._held = None
            held = copy.copy(stores[step.size])  # so that its memory is given back
            hold(held, self.options["max_memory"] // 2, self.batch)
            self._held = step.size, held
        stores[step.size] = self._held[1]
        return stores, None

    def rows(self, funnel: Funnel, queries: slice = slice(None), batch_size: int = 1024) -> np.ndarray:
        """Return the rows that a funnel finds, best first: [queries, keep].

        Args:
            funnel: The steps; the last one names how many passages it keeps.
            queries: Which of the queries to search.
            batch_size: Queries that are searched at once, 1 or more; the result does not depend on it.

        Raises:
            UserError: There are too few passages to learn the code of the first step from.
        """
        stores, first = self._arguments(funnel)
        vectors = {size: self.queries[size][queries] for size in funnel.sizes}
        options = self.options | {"batch_size": batch_size}
        if len(funnel.steps) == 1 and funnel.steps[0].code:
            assert first is not None and funnel.depth is not None
            of_size = vectors[funnel.last]
            parts = [of_size[start : start + batch_size] for start in range(0, len(of_size), batch_size)]
            lines = [row for part in parts for row in first(part, funnel.depth)[0]]
            rows = np.full((len(lines), funnel.depth), -1, np.int64)  # an index may find fewer
            for row, line in zip(rows, lines):
                row[: len(line)] = line
            return rows
        found = funnel_search(vectors, stores, funnel, first=first, **options)
        return np.concatenate([rows for rows, _ in found])

    def seconds(self, funnel: Funnel, timer: Timer) -> float:
        """Return the measured seconds per query of a funnel.

        Making codes and reading the vectors of the first step into memory are not timed.

        Args:
            funnel: The steps.
            timer: Called with the funnel as text, as `with_index` gives it, and a function that searches the timed queries; returns seconds.
        """
        self._arguments(funnel)
        return timer(with_index(funnel), partial(self.rows, funnel, slice(self.timed), self.batch)) / self.timed

    def rescoring(self, size: Size, rows: np.ndarray, timer: Timer) -> float:
        """Return the measured seconds per query of scoring a shortlist at a later step.

        Args:
            size: The size of the step.
            rows: Rows of the passages [queries, any], distinct for each query; at least for those that are timed.
            timer: Called with a text such as "12:768 of 1000" and a function that scores them; returns seconds.
        """
        store, vectors, memory = self.stores[size], self.queries[size], self.options["max_memory"]
        store.keep_mapped()
        keep = min(CUTOFF, rows.shape[1])

        def run() -> None:
            for start in range(0, self.timed, self.batch):
                part = slice(start, min(start + self.batch, self.timed))
                rescore(vectors[part], rows[part], keep, store, memory, self.options["threads"])

        run()
        return timer(f"{size} of {rows.shape[1]}", run) / self.timed


def measure(measured: Measured, search: Trials, steps: Sequence[FunnelStep], timer: Timer) -> None:
    """Fill in the lists and times of the steps that funnels are made of.

    First steps whose code cannot be learnt from so few passages are left out.

    Args:
        measured: `found`, `scan` and `rescore` are filled in.
        search: Searches and times the steps.
        steps: The first steps, from `index_steps` and then `first_steps`: the lists of the last are rescored for its time.
        timer: Returns the seconds that a function takes, as `stopwatch`.
    """
    lengths = sorted({measured.depth, max(measured.keeps, default=measured.depth)})
    for step in progress(steps, len(steps), "first steps", "choosing a funnel"):
        try:
            longest = _alone_at(step, max(lengths[-1], min(CUTOFF, search.stores[step.size].count)))
            measured.found[step] = search.rows(longest).astype(np.int32)
        except UserError:
            if step.code not in CODES:
                raise
            continue  # too few passages for a quantiser to learn from
        timed = {length: search.seconds(_alone_at(step, length), timer) for length in lengths}
        measured.scan[step] = ByLength(timed)
    rows = next(reversed(measured.found.values())).astype(np.int64)
    for size in measured.ends:
        measured.rescore[size] = ByLength({n: search.rescoring(size, rows[:, :n], timer) for n in lengths})


def _alone_at(step: FunnelStep, keep: int) -> Funnel:
    """Return the first step as a funnel of its own that keeps `keep` passages, which for codes no user may name."""
    funnel = Funnel((FunnelStep(step.size, keep),))
    object.__setattr__(funnel, "steps", (replace(step, keep=keep),))
    return funnel


def with_index(funnel: Funnel) -> str:
    """Return a funnel as text, with the flags of the index that its first step asks."""
    step = funnel.steps[0]
    if not isinstance(step, IndexStep):
        return str(funnel)
    return f"{funnel}{index_flags(step.folder, step.parameters)}"
