"""Claim: rescoring shortlists gains from a second thread.

A later step of a funnel (gathering the candidates' rows, converting them, exact scores) with one thread and with more,
interleaved, over a float16 store in the page cache. With --factory also `SavedIndex.search`, whose candidates are
neighbours and not random rows; "not rescored" beside it is FAISS alone, which has as many threads. Beside the ratio by the clock stand the seconds of all processors: if
they grow with the threads, threads wait for each other while they spin. NumPy's linear algebra library keeps its own
threads, as for a user; --blas_threads 1 takes them away (it needs threadpoolctl).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import common
import numpy as np
import search_common

from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.funnel_search import rescore
from starbucks_retrieval.search.indexes import SavedIndex, build_index, open_index
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=200_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=64, help="queries a round")
    flags.add_argument("--sizes", nargs="+", default=["6:128", "12:768"], help="sizes of the step")
    flags.add_argument("--candidates", type=int, nargs="+", default=[100, 1000], help="lengths of shortlists")
    flags.add_argument("--depth", type=int, default=10, help="passages that the step keeps")
    flags.add_argument("--threads", type=int, nargs="+", default=[2], help="to compare with one thread")
    flags.add_argument("--blas_threads", type=int, default=None, help="of NumPy's library (default: as it is)")
    flags.add_argument("--factory", help="an index to search too, such as IVF1024,SQ8 or SQ8 (default: none)")
    settings = flags.parse_args()
    report = common.Report("search_rescore", settings)
    with tempfile.TemporaryDirectory() as folder, _blas(settings.blas_threads):
        sizes = [Size.parse(size) for size in settings.sizes]
        corpus = search_common.Corpus(settings.passages, settings.seed)
        queries = corpus.queries(settings.queries, sizes)
        for size, store in corpus.write(Path(folder), sizes).items():
            store.keep_mapped()
            index = None
            if settings.factory:
                built = build_index(store, settings.factory, Path(folder) / f"index-{size.layer}-{size.dim}")
                index = open_index(built.folder, store)
            for candidates in settings.candidates:
                _measure_step(settings, size, store, queries[size], candidates, report)
                if index is not None:
                    _measure_index(settings, size, index, queries[size], candidates, report)


def _blas(threads: int | None) -> contextlib.AbstractContextManager:
    if threads is None:
        return contextlib.nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(threads)


def _measure_step(
    settings: argparse.Namespace,
    size: Size,
    store: EmbeddingStore,
    queries: np.ndarray,
    candidates: int,
    report: common.Report,
) -> None:
    rng = np.random.default_rng(settings.seed)
    rows = np.stack([rng.choice(store.count, min(candidates, store.count), replace=False) for _ in queries])
    searches = {
        str(threads): partial(rescore, queries, rows, settings.depth, store, MAX_MEMORY, threads)
        for threads in (1, *settings.threads)
    }
    _compare(settings, f"{candidates} candidates at {size}", searches, len(queries), report)


def _measure_index(
    settings: argparse.Namespace,
    size: Size,
    index: SavedIndex,
    queries: np.ndarray,
    candidates: int,
    report: common.Report,
) -> None:
    searches: dict[str, Callable[[], object]] = {}
    for threads in (1, *settings.threads):
        factor = max(1, candidates // settings.depth)
        searches[str(threads)] = partial(index.search, queries, settings.depth, rescore=factor, threads=threads)
        alone = partial(index.search, queries, factor * settings.depth, rescore=0, threads=threads)
        searches[f"{threads}, not rescored"] = alone
    _compare(settings, f"{settings.factory}, {candidates} candidates at {size}", searches, len(queries), report)


def _compare(
    settings: argparse.Namespace,
    name: str,
    searches: Mapping[str, Callable[[], object]],
    queries: int,
    report: common.Report,
) -> None:
    processor: dict[str, list[float]] = {label: [] for label in searches}

    def timed(label: str, number: int = 0) -> None:
        began = time.process_time()
        searches[label]()
        processor[label].append(time.process_time() - began)

    for label in searches:
        timed(label)  # and the page cache has the rows
        processor[label].clear()
    seconds = common.interleaved({label: partial(timed, label) for label in searches}, settings.rounds, settings.clock)
    for threads in settings.threads:
        report.line(
            f"{name}, {threads} threads over 1",
            "time with one thread / with these; higher is better, the number of threads is the most",
            **common.ratio(seconds["1"], seconds[str(threads)]),
            query_ms=_milliseconds(seconds, queries),
            processor_ms=_milliseconds(processor, queries),
        )


def _milliseconds(seconds: Mapping[str, Sequence[float]], queries: int) -> dict[str, float]:
    return {label: round(1000 * statistics.median(laps) / queries, 3) for label, laps in seconds.items()}


if __name__ == "__main__":
    main()
