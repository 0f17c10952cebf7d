"""Measuring this machine in a few seconds, with made-up vectors and the code that searches."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.search.engines.exact import exact_search, import_faiss
from starbucks_retrieval.search.estimate.machine import (
    LEAST_EF,
    LINKS,
    RESCORE,
    Growth,
    LinearCost,
    Machine,
    Rates,
    kept_of,
)
from starbucks_retrieval.search.funnel_rescore import rescore
from starbucks_retrieval.search.plan import make_plan
from starbucks_retrieval.search.scores import best, score_candidates
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter

NARROW, WIDE = 32, 512  # dims measured; others lie on the line through the two
_BYTES = (8, 64)  # of codes
_CODES, _FETCHED, _DRAWN, _FEW = 65536, 1000, 2048, 8192

Timed = Callable[[Callable[[], object]], float]
Score = Callable[[np.ndarray, np.ndarray, int, EmbeddingStore, int], object]


def measure_machine(
    seconds: float = 3.0,
    *,
    depth: int = 1000,
    batches: Sequence[int] = (1, 64),
    store_dtype: str = "float16",
    threads: int | None = None,
    table_bytes: int = 64 << 20,
    nodes: int = 8192,
    seed: int = 42,
) -> Machine:
    """Time the pieces of a search on this machine for about `seconds`, and half as long again to make vectors.

    `table_bytes`: of the vectors scanned, more than caches hold; `nodes`: of the HNSW graph. A time is the best of
    some runs. Stores are written to a temporary folder and removed. Raises UserError without FAISS.
    """
    timed = partial(_best_time, budget=seconds / (8 + 9 * len(batches)))
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(table_bytes // 4 // WIDE * WIDE, dtype=np.float32)
    tables = {dim: numbers.reshape(-1, dim) for dim in (NARROW, WIDE)}
    copy = np.empty_like(numbers)
    with _faiss(threads) as faiss, tempfile.TemporaryDirectory() as folder:
        tiny = _store(Path(folder) / "tiny", tables[NARROW][:64], store_dtype)
        opening = timed(lambda: tiny.vectors(np.zeros(1, np.int64)))
        call = timed(lambda: list(exact_search(tables[NARROW][:1], tiny, 1)))
        flats = {dim: faiss.IndexFlatIP(dim) for dim in tables}
        for dim, index in flats.items():
            index.add(tables[dim])
        stores = {dim: _store(Path(folder) / str(dim), own[:16384], store_dtype) for dim, own in tables.items()}
        wide = stores[WIDE]
        singles = copy[: wide.count * WIDE].reshape(-1, WIDE)
        reading = timed(lambda: np.copyto(singles, next(wide.blocks(wide.count))[1]))
        fetched = partial(_fetching, timed, stores, opening)
        graph, growth = _graph(faiss, rng, nodes)

        def rates(batch: int) -> Rates:
            with _faiss(min(batch, faiss.omp_get_max_threads())):  # FAISS gives every query to one thread
                return _rates(faiss, timed, tables, flats, graph, depth, batch, rng)

        return Machine(
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            threads=faiss.omp_get_max_threads(),
            bandwidth=2 * numbers.nbytes / timed(lambda: np.copyto(copy, numbers)),
            store_dtype=store_dtype,
            depth=depth,
            call=_rest(call, 2 * opening),
            opening=opening,
            reading=_rest(reading, opening) / (wide.count * WIDE),
            fetching=fetched(_score),
            rescoring=fetched(rescore),
            rates={batch: rates(batch) for batch in batches},
            growth=growth,
        )


def _rates(
    faiss: Any,
    timed: Timed,
    tables: Mapping[int, np.ndarray],
    flats: Mapping[int, Any],
    graph: Any,
    depth: int,
    batch: int,
    rng: np.random.Generator,
) -> Rates:
    """Rates at one batch. `tables`: vectors by dim, far more than caches hold; `flats`: the same in FAISS."""
    wide = RESCORE * depth
    # Where every query is a thread's own work, more than enough for all threads tell no more.
    some = min(batch, 8 * faiss.omp_get_max_threads())

    def scan(table: np.ndarray) -> tuple[int, float, float]:
        """Passages, seconds to scan them, and how many of them enter the list of the best."""
        kept = make_plan(2**31, batch, depth, len(table), table.shape[1]).candidates
        queries = rng.standard_normal((batch, table.shape[1]), dtype=np.float32)
        search = partial(faiss.knn, queries, table, kept, metric=faiss.METRIC_INNER_PRODUCT)
        return len(table), timed(search) / batch, kept_of(len(table), kept)

    def visit(index: Any) -> float:
        queries = rng.standard_normal((some, index.d), dtype=np.float32)
        out = np.empty((some, _DRAWN), np.float32)
        # Other rows in every run: those of the last one are in the caches.
        runs = -(-index.ntotal // out.size)
        drawn = cycle(np.resize(rng.permutation(index.ntotal), (runs, some, _DRAWN)))

        def run() -> None:
            places = map(faiss.swig_ptr, (queries, out, next(drawn)))
            index.compute_distance_subset(some, next(places), _DRAWN, *places)

        return timed(run) / out.size

    def code(width: int, kept: int) -> float:
        index = _quantised(faiss, width, rng)
        queries = rng.standard_normal((some, index.d), dtype=np.float32)
        return timed(partial(index.search, queries, kept)) / some

    cached = visit(faiss.downcast_index(graph.storage))
    queries = _embeddings(rng, some)
    search = partial(_search, faiss, graph, queries, min(wide, graph.ntotal), max(LEAST_EF, wide))

    visits, hops = search()
    scans = {dim: scan(table) for dim, table in tables.items()}
    # Few passages and many of one dim tell what a passage costs from what a place in the list does.
    few, short, entered = scan(tables[NARROW][:_FEW])
    many, long, more = scans[NARROW]
    choose = max(0.0, (short * many - long * few) / (entered * many - more * few))
    codes = [(width, code(width, 1)) for width in _BYTES]
    return Rates(
        scan=LinearCost.through(
            *((dim, _rest(taken, own * choose) / rows) for dim, (rows, taken, own) in scans.items())
        ),
        choose=choose,
        code=LinearCost.through(*((width, taken / _CODES) for width, taken in codes)),
        keep=max(0.0, code(_BYTES[0], wide) - codes[0][1]) / kept_of(_CODES, wide),
        visit=LinearCost.through(*((dim, visit(index)) for dim, index in flats.items())),
        hop=max(0.0, timed(search) / some - visits * cached) / hops,
    )


def _fetching(timed: Timed, stores: Mapping[int, EmbeddingStore], opening: float, score: Score) -> LinearCost:
    """A line through the seconds of one of eight queries' own passages, scored from stores of one shard."""
    taken = []
    for dim, store in stores.items():
        rng, count = np.random.default_rng(dim), min(_FETCHED, store.count)
        rows = np.stack([rng.permutation(store.count)[:count] for _ in range(8)])
        queries = rng.standard_normal((len(rows), dim), dtype=np.float32)
        seconds = _rest(timed(partial(score, queries, rows, count, store, 2**31)), opening)
        taken.append((dim, seconds / rows.size))
    return LinearCost.through(*taken)


def _score(queries: np.ndarray, rows: np.ndarray, keep: int, store: EmbeddingStore, memory: int) -> object:
    """What searching exactly or through an index does with its candidates; a funnel has `rescore`."""
    return best(rows, score_candidates(queries, rows, store, memory // 4), keep, store)


def _graph(faiss: Any, rng: np.random.Generator, nodes: int) -> tuple[Any, Growth]:
    """A graph of `nodes` vectors, and how its visits grew from a quarter of them, and with four times as many kept."""
    vectors, queries = _embeddings(rng, nodes), _embeddings(rng, 64)
    graph = faiss.IndexHNSWFlat(NARROW, LINKS, faiss.METRIC_INNER_PRODUCT)

    def fresh(ef: int) -> float:
        visits, _ = _search(faiss, graph, queries, 1, ef)
        return -graph.ntotal * math.log1p(-min(visits / graph.ntotal, 0.999))

    graph.add(vectors[: nodes // 4])
    early = fresh(LEAST_EF)
    graph.add(vectors[nodes // 4 :])
    late, deep = fresh(LEAST_EF), fresh(4 * LEAST_EF)
    return graph, Growth(
        nodes=nodes,
        fresh=late,
        power=min(1.0, max(0.0, math.log(deep / late) / math.log(4))),
        slope=max(0.0, (1 - early / late) / math.log(4)),
    )


def _search(faiss: Any, graph: Any, queries: np.ndarray, kept: int, ef: int) -> tuple[float, float]:
    """Search, and say how many vectors a query visited, and how many nodes' links it followed."""
    stats = faiss.cvar.hnsw_stats
    stats.reset()
    graph.search(queries, kept, params=faiss.SearchParametersHNSW(efSearch=ef))
    return stats.ndis / len(queries), max(1.0, stats.nhops / len(queries))


def _quantised(faiss: Any, width: int, rng: np.random.Generator) -> Any:
    """An IVF-PQ of random codes of `width` bytes, all of whose lists are looked at; nothing is trained."""
    lists, dim = 16, 4 * width
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(rng.standard_normal((lists, dim), dtype=np.float32))
    index = faiss.IndexIVFPQ(quantizer, dim, lists, width, 8, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(rng.standard_normal(256 * dim, dtype=np.float32), index.pq.centroids)
    codes, ids = rng.integers(0, 256, (lists, _CODES // lists, width), np.uint8), np.arange(_CODES).reshape(lists, -1)
    for place in range(lists):
        index.invlists.add_entries(place, ids.shape[1], faiss.swig_ptr(ids[place]), faiss.swig_ptr(codes[place]))
    index.is_trained, index.ntotal, index.nprobe = True, _CODES, lists
    return index


def _embeddings(rng: np.random.Generator, count: int) -> np.ndarray:
    """Vectors [count, NARROW] of length 1 whose spectrum decays as that of embeddings does."""
    vectors = rng.standard_normal((count, NARROW), dtype=np.float32) / np.sqrt(
        np.arange(1, NARROW + 1, dtype=np.float32)
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _store(folder: Path, vectors: np.ndarray, store_dtype: str) -> EmbeddingStore:
    """A store of one shard."""
    count, dim = vectors.shape
    texts: dict[str, Any] = {"pooling": "cls", "normalize": False, "prefix": "", "separator": " ", "max_length": 1}
    made: dict[str, Any] = {"fingerprint": "", "compute_dtype": "fp32", "store_dtype": store_dtype, "data_digest": ""}
    spec = StoreSpec(kind="passages", size=Size(1, dim), **texts, **made, data_count=count, shard_size=count)
    with StoreWriter.open(folder, spec) as writer:
        writer.write_shard(0, list(map(str, range(count))), vectors)
        writer.finish()
    return EmbeddingStore.open(folder)


@contextmanager
def _faiss(threads: int | None) -> Iterator[Any]:
    """FAISS with so many threads, and afterwards with as many as before."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def _rest(whole: float, part: float) -> float:
    """What is left of a time without a part that was timed by itself.

    On a busy machine the part alone can have taken longer than the whole: a hundredth is kept, so that no piece of work
    is said to be free.
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
