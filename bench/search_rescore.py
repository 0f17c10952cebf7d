"""Claim: rescoring shortlists gains from a second thread.

A later step of a funnel (gathering the candidates' rows, converting them, exact scores) with one thread and with more,
interleaved, over a float16 store in the page cache. Beside the ratio by the clock stand the seconds of all processors: if
they grow with the threads, threads wait for each other while they spin. NumPy's linear algebra library keeps its own
threads, as for a user; --blas_threads 1 takes them away (it needs threadpoolctl).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import common
import numpy as np
import search_common

from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.funnel_search import rescore
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
    settings = flags.parse_args()
    report = common.Report("search_rescore", settings)
    with tempfile.TemporaryDirectory() as folder, _blas(settings.blas_threads):
        sizes = [Size.parse(size) for size in settings.sizes]
        corpus = search_common.Corpus(settings.passages, settings.seed)
        queries = corpus.queries(settings.queries, sizes)
        for size, store in corpus.write(Path(folder), sizes).items():
            store.keep_mapped()
            for candidates in settings.candidates:
                _measure(settings, size, store, queries[size], candidates, report)


def _blas(threads: int | None) -> contextlib.AbstractContextManager:
    if threads is None:
        return contextlib.nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(threads)


def _measure(
    settings: argparse.Namespace,
    size: Size,
    store: EmbeddingStore,
    queries: np.ndarray,
    candidates: int,
    report: common.Report,
) -> None:
    rng = np.random.default_rng(settings.seed)
    rows = np.stack([rng.choice(store.count, min(candidates, store.count), replace=False) for _ in queries])
    processor: dict[str, list[float]] = {str(threads): [] for threads in (1, *settings.threads)}

    def timed(threads: str, number: int = 0) -> None:
        began = time.process_time()
        rescore(queries, rows, settings.depth, store, MAX_MEMORY, int(threads))
        processor[threads].append(time.process_time() - began)

    for threads in processor:
        timed(threads)  # and the page cache has the rows
        processor[threads].clear()
    contenders = {threads: partial(timed, threads) for threads in processor}
    seconds = common.interleaved(contenders, settings.rounds, settings.clock)
    for threads in settings.threads:
        report.line(
            f"{candidates} candidates at {size}, {threads} threads over 1",
            "time with one thread / with these; higher is better, the number of threads is the most",
            **common.ratio(seconds["1"], seconds[str(threads)]),
            query_ms={name: round(1000 * statistics.median(laps) / len(queries), 3) for name, laps in seconds.items()},
            processor_ms={
                name: round(1000 * statistics.median(laps) / len(queries), 3) for name, laps in processor.items()
            },
        )


if __name__ == "__main__":
    main()
