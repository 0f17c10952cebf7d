"""Measuring this machine in a few seconds: the parts of exact search and of funnels, timed on made-up vectors."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.search.engines import plan_memory
from starbucks_retrieval.search.engines.exact import exact_search, import_faiss
from starbucks_retrieval.search.engines.float16_scan import NUMBERS_AT_ONCE, scan_float16, scan_is_faster
from starbucks_retrieval.search.funnel_search import rescore
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.scores import score_candidates
from starbucks_retrieval.search.stores import write_vectors
from starbucks_retrieval.store import EmbeddingStore

NARROW, WIDE = 32, 512  # dims that are measured; other dims are on the line through the two
_FETCHED, _FEW_ROWS, _STORED_ROWS = 1000, 8192, 16384

Timer = Callable[[Callable[[], object]], float]
Scoring = Callable[[np.ndarray, np.ndarray, int, EmbeddingStore, int], object]


@dataclass(frozen=True)
class LinearCost:
    """Seconds of an operation on a vector of some dim: `each` + `number` × dim.

    Attributes:
        each: Seconds for a vector, whatever its dim.
        number: Seconds for each dimension.
    """

    each: float
    number: float

    def __call__(self, dim: float) -> float:
        return self.each + self.number * dim

    @classmethod
    def through(cls, narrow: tuple[int, float], wide: tuple[int, float]) -> LinearCost:
        """Return the line through two measurements, with neither coefficient negative.

        Args:
            narrow: The smaller dim, and seconds.
            wide: The larger dim, and seconds. The line always passes through this one.
        """
        (left, low), (right, high) = narrow, wide
        number = min(max(0.0, (high - low) / (right - left)), high / right)
        return cls(max(0.0, high - number * right), number)


@dataclass(frozen=True)
class ScanRates:
    """Seconds per query at one batch size.

    Attributes:
        scan: For one passage, by dim.
        choose: For one passage that enters the list of the best.
    """

    scan: LinearCost
    choose: float


@dataclass(frozen=True)
class MachineRates:
    """What `measure_machine` found, for stores of one type and one depth.

    Args:
        memory: Bytes of this machine.
        threads: CPU threads that FAISS uses.
        bandwidth: Bytes per second that are read and written by copying.
        store_dtype: Type of the stored vectors.
        depth: Passages per query.
        call: Seconds of a search of almost nothing.
        opening: Seconds to open a shard.
        reading: Seconds to read a stored number in order, as float32.
        fetching: Seconds to read a passage by its row and score it exactly, by dim.
        rescoring: The same in a later step of a funnel.
        rates: Rates of scanning by batch size.
    """

    memory: int
    threads: int
    bandwidth: float
    store_dtype: str
    depth: int
    call: float
    opening: float
    reading: float
    fetching: LinearCost
    rescoring: LinearCost
    rates: Mapping[int, ScanRates]

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.memory / 1e9:.0f} GB, copying {self.bandwidth / 1e9:.1f} GB/s"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)


def kept_of(seen: float, kept: float) -> float:
    """Return how many of `seen` scores in random order enter a list of the `kept` best: k (1 + ln(n / k)).

    Args:
        seen: Scores that pass by, n. Up to `kept` of them, all enter.
        kept: Length of the list, k.

    Example:
        >>> kept_of(50, 100), round(kept_of(1_000_000, 100))
        (50, 1021)
    """
    return kept * (1 + math.log(seen / kept)) if seen > kept else seen


def measure_machine(
    seconds: float = 3.0,
    *,
    depth: int = 1000,
    batches: Sequence[int] = (1, 64),
    store_dtype: str = "float16",
    threads: int | None = None,
    table_bytes: int = 64 << 20,
    seed: int = 42,
) -> MachineRates:
    """Time the parts of a search on this machine; each time is the best of several runs.

    Args:
        seconds: Time to spend, about; making the vectors takes half as long again.
        depth: Passages per query.
        batches: Numbers of queries that are searched at once.
        store_dtype: `float16` or `float32`.
        threads: CPU threads of FAISS; None: all.
        table_bytes: Bytes of the vectors that are scanned, more than caches hold.
        seed: Draws the vectors.

    Raises:
        UserError: FAISS is not installed.
    """
    timer = partial(_best_time, budget=seconds / (8 + 3 * len(batches)))
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(table_bytes // 4 // WIDE * WIDE, dtype=np.float32)
    tables = {dim: numbers.reshape(-1, dim) for dim in (NARROW, WIDE)}
    copy = np.empty_like(numbers)
    with _faiss_threads(threads) as faiss, tempfile.TemporaryDirectory() as folder:
        tiny = _store(Path(folder) / "tiny", tables[NARROW][:64], store_dtype)
        opening = timer(lambda: tiny.vectors(np.zeros(1, np.int64)))
        call = timer(lambda: list(exact_search(tables[NARROW][:1], tiny, 1)))
        stores = {
            dim: _store(Path(folder) / str(dim), table[:_STORED_ROWS], store_dtype) for dim, table in tables.items()
        }
        wide = stores[WIDE]
        buffer = copy[: wide.count * WIDE].reshape(-1, WIDE)
        reading = timer(lambda: np.copyto(buffer, next(wide.blocks(wide.count))[1]))
        fetched = partial(_fetching, timer, stores, opening)

        def rates(batch: int) -> ScanRates:
            if scan_is_faster(batch, store_dtype):
                halves = {dim: table.astype(np.float16) for dim, table in tables.items()}
                return _scan_rates(faiss, timer, halves, depth, batch, rng)
            with _faiss_threads(min(batch, faiss.omp_get_max_threads())):  # FAISS gives every query to one thread
                return _scan_rates(faiss, timer, tables, depth, batch, rng)

        return MachineRates(
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            threads=faiss.omp_get_max_threads(),
            bandwidth=2 * numbers.nbytes / timer(lambda: np.copyto(copy, numbers)),
            store_dtype=store_dtype,
            depth=depth,
            call=_remainder(call, 2 * opening),
            opening=opening,
            reading=_remainder(reading, opening) / (wide.count * WIDE),
            fetching=fetched(_score_all),
            rescoring=fetched(rescore),
            rates={batch: rates(batch) for batch in batches},
        )


def _scan_rates(
    faiss: Any, timer: Timer, tables: Mapping[int, np.ndarray], depth: int, batch: int, rng: np.random.Generator
) -> ScanRates:
    """Rates at one batch size. `tables`: vectors by dim, far more than caches hold; float16 ones are scanned as they are."""

    def scan(table: np.ndarray) -> tuple[int, float, float]:
        """Passages, seconds to scan them, and how many of them enter the list of the best."""
        kept = plan_memory(2**31, batch, depth, len(table), table.shape[1]).candidates
        queries = rng.standard_normal((batch, table.shape[1]), dtype=np.float32)
        if table.dtype == np.float16:
            edges = range(0, len(table), NUMBERS_AT_ONCE // table.shape[1])
            ranges = [(start, min(start + edges.step, len(table))) for start in edges]
            search = partial(scan_float16, faiss, queries, lambda start, stop: table[start:stop], ranges, kept)
        else:
            search = partial(faiss.knn, queries, table, kept, metric=faiss.METRIC_INNER_PRODUCT)
        return len(table), timer(search) / batch, kept_of(len(table), kept)

    scans = {dim: scan(table) for dim, table in tables.items()}
    # Few and many passages of one dim separate the cost of a passage from that of entering the list.
    few, short, entered = scan(tables[NARROW][:_FEW_ROWS])
    many, long, more = scans[NARROW]
    choose = max(0.0, (short * many - long * few) / (entered * many - more * few))
    lines = ((dim, _remainder(taken, kept * choose) / rows) for dim, (rows, taken, kept) in scans.items())
    return ScanRates(scan=LinearCost.through(*lines), choose=choose)


def _fetching(timer: Timer, stores: Mapping[int, EmbeddingStore], opening: float, score: Scoring) -> LinearCost:
    """A line through the seconds per passage of eight queries that score different passages of one shard."""
    measured = []
    for dim, store in stores.items():
        rng, count = np.random.default_rng(dim), min(_FETCHED, store.count)
        rows = np.stack([rng.permutation(store.count)[:count] for _ in range(8)])
        queries = rng.standard_normal((len(rows), dim), dtype=np.float32)
        seconds = _remainder(timer(partial(score, queries, rows, count, store, 2**31)), opening)
        measured.append((dim, seconds / rows.size))
    return LinearCost.through(*measured)


def _score_all(queries: np.ndarray, rows: np.ndarray, keep: int, store: EmbeddingStore, memory: int) -> object:
    """Score candidates as exact search does; later steps of a funnel use `rescore`."""
    return best(rows, score_candidates(queries, rows, store, memory // 4), keep, store)


def _store(folder: Path, vectors: np.ndarray, store_dtype: str) -> EmbeddingStore:
    return write_vectors(folder, list(map(str, range(len(vectors)))), vectors, store_dtype)


@contextmanager
def _faiss_threads(threads: int | None) -> Iterator[Any]:
    """Set the number of FAISS's threads inside the context, and restore it afterwards."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def _remainder(whole: float, part: float) -> float:
    """Return a time without a part that was timed separately, and at least a hundredth of it.

    On a busy machine the part alone can have taken longer than the whole; nothing should cost zero.
    """
    return max(whole - part, whole / 100)


def _best_time(run: Callable[[], object], budget: float) -> float:
    run()
    stop, shortest = now() + budget, math.inf
    while True:
        began = now()
        run()
        shortest = min(shortest, seconds_since(began))
        if now() >= stop:
            return shortest
