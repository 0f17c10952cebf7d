"""Claim: `search --plan` estimates the time of a query from 10,000 passages to 1,000,000, within an error.

The rates of the machine are measured once, at the start, then searches over synthetic stores: vectors of length 1 whose
spectrum decays, as that of embeddings does. Exact search and funnels are compared; indexes are not estimated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np

from starbucks_retrieval.search import exact_search, parse_bytes
from starbucks_retrieval.search.estimate import SearchEstimate, estimate
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.machine import MachineRates, measure_machine
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter

SHARD = 16384


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="passages")
    flags.add_argument("--sizes", default="2:32,6:128,12:768", help="sizes, the smallest of which begins the funnel")
    flags.add_argument("--batches", type=int, nargs="+", default=[1, 64], help="queries at once")
    flags.add_argument("--depth", type=int, default=1000, help="passages per query")
    flags.add_argument("--max_memory", default="2GB", help="of a search")
    flags.add_argument("--least_seconds", type=float, default=0.2, help="a search is repeated for so long in a round")
    flags.add_argument("--measure_seconds", type=float, default=6.0, help="spent on measuring the machine")
    settings = flags.parse_args()
    machine = measure_machine(
        settings.measure_seconds, depth=settings.depth, batches=settings.batches, seed=settings.seed
    )
    report = common.Report("search_growth", settings, model=machine.to_json())
    errors: dict[str, list[float]] = {}
    for count in settings.counts:
        with tempfile.TemporaryDirectory() as folder:
            _at(count, Path(folder), machine, settings, report, errors)
    for kind, own in errors.items():
        report.line(
            f"error of the model, {kind}",
            "estimated over measured milliseconds of a query, less 1: over all counts, sizes and batches; near 0 is better",
            median_error=round(statistics.median(own), 3),
            least_error=round(min(own), 3),
            largest_error=round(max(own), 3),
            figures=len(own),
        )


def _at(
    count: int,
    folder: Path,
    machine: MachineRates,
    settings: argparse.Namespace,
    report: common.Report,
    errors: dict[str, list[float]],
) -> None:
    sizes = Sizes.parse(settings.sizes)
    stores = {size: _store(folder / str(size.dim), size, count, settings.seed) for size in sizes}
    queries = {size: _vectors(max(settings.batches), size.dim, settings.seed, "queries") for size in sizes}
    rows: dict[str, tuple[SearchEstimate, int]] = {}
    contenders: dict[str, Callable[[int], object]] = {}
    times: dict[str, int] = {}
    for row in estimate(machine, count, sizes, max_memory=parse_bytes(settings.max_memory)):
        search = _search(row, stores, settings)
        for batch in settings.batches:
            name = f"{row.search} at {row.size}, {batch} at once"
            rows[name] = row, batch
            some = {size: own[:batch] for size, own in queries.items()}
            search(some)  # the first search of a store or an index maps its pages
            began = time.perf_counter()
            search(some)
            times[name] = max(1, round(settings.least_seconds / (time.perf_counter() - began)))
            contenders[name] = partial(_run, search, some, times[name])
    laps = common.interleaved(contenders, settings.rounds)
    seconds = {name: [lap / times[name] for lap in own] for name, own in laps.items()}
    for name, (row, batch) in rows.items():
        estimated = row.milliseconds[batch]
        measured = [1000 * lap / batch for lap in seconds[name]]
        error = estimated / statistics.median(measured) - 1
        errors.setdefault(_kind(row), []).append(error)
        extra: dict[str, Any] = {}
        if row.search == "flat":  # every stored number is read once a batch
            read = count * row.size.dim * stores[row.size].dtype.itemsize / statistics.median(seconds[name])
            extra["share_of_bandwidth"] = round(read / machine.bandwidth, 3)
        report.line(
            f"{name}, {count} passages",
            "estimated over measured milliseconds of a query; 1 is a perfect model",
            **common.ratio([estimated] * len(measured), measured),
            relative_error=round(error, 3),
            estimated_ms=round(estimated, 4),
            measured_ms=round(statistics.median(measured), 4),
            passages=count,
            **extra,
        )


def _kind(row: SearchEstimate) -> str:
    return "flat" if row.search == "flat" else "funnel"


def _search(
    row: SearchEstimate, stores: dict[Size, EmbeddingStore], settings: argparse.Namespace
) -> Callable[[dict[Size, np.ndarray]], object]:
    """Return a function that searches as an estimate says, given queries by size."""
    depth = settings.depth
    memory: dict[str, Any] = {"max_memory": parse_bytes(settings.max_memory)}
    if row.search == "flat":
        return lambda queries: list(exact_search(queries[row.size], stores[row.size], depth, **memory))
    funnel = Funnel.parse(row.search).at_depth(min(depth, row.fetched))
    return lambda queries: list(funnel_search(queries, stores, funnel, **memory))


def _run(
    search: Callable[[dict[Size, np.ndarray]], object], queries: dict[Size, np.ndarray], times: int, number: int
) -> None:
    for _ in range(times):
        search(queries)


def _store(folder: Path, size: Size, count: int, seed: int) -> EmbeddingStore:
    texts: dict[str, Any] = {"pooling": "cls", "normalize": True, "prefix": "", "separator": " ", "max_length": 1}
    made: dict[str, Any] = {"fingerprint": "", "compute_dtype": "fp32", "store_dtype": "float16", "data_digest": ""}
    spec = StoreSpec(kind="passages", size=size, **texts, **made, data_count=count, shard_size=SHARD)
    with StoreWriter.open(folder, spec) as writer:
        for shard in writer.missing_shards():
            start, stop = spec.shard_rows(shard)
            vectors = _vectors(stop - start, size.dim, seed, shard)
            writer.write_shard(shard, list(map(str, range(start, stop))), vectors)
        writer.finish()
    return EmbeddingStore.open(folder)


def _vectors(count: int, dim: int, seed: int, shard: int | str) -> np.ndarray:
    """Vectors [count, dim] float32 of length 1; the variance of dimension i falls as 1 / i."""
    rng = np.random.default_rng([seed, dim, 2**31 if isinstance(shard, str) else shard])
    vectors = rng.standard_normal((count, dim), dtype=np.float32) / np.sqrt(np.arange(1, dim + 1, dtype=np.float32))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
