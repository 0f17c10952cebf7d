"""Claim: a scan of codes, or an index, is many times as fast as plain FAISS on a real model's vectors, and finds the same.

Stores of a real model (`starbucks encode`, `starbucks store quantise`) are searched in the ways that --ways names: at a size
(6:384), at a size of the quantised store beside it (int8=6:384), through a funnel (6:384/int8@50,6:384) or by an index
(IVF1024,SQ8;nprobe=16, whose best are scored again). Times are those of the processor on one thread, unless --clock wall is
given, so that other work matters less; the rival is IndexFlatIP over all vectors of the deepest size in single precision.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common
import torch

from starbucks_retrieval.data.collection import read_qrels
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import exact_search, import_faiss
from starbucks_retrieval.search.engines.float16_scan import hold
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_candidates import Agreement, JudgedQuality
from starbucks_retrieval.search.funnel_first_steps import code_shortlister
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.indexes import build_index, open_index, sample_rows
from starbucks_retrieval.search.stores import open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.dtypes import QUANTISED, row_bytes

_DEPTH = 10


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passage_reps", required=True, help="passages, as encode wrote them")
    flags.add_argument("--query_reps", required=True, help="queries")
    flags.add_argument("--ways", nargs="+", required=True, help="see above")
    flags.add_argument("--qrels", default=None, help="judgements, for nDCG@10; only these queries are searched")
    flags.add_argument("--queries", type=int, default=64, help="queries a round that are timed")
    flags.add_argument("--limit", type=int, default=500, help="queries whose results are compared, drawn by --seed")
    flags.add_argument("--batch_size", type=int, nargs="+", default=[64, 1], help="queries at once")
    flags.add_argument("--threads", type=int, default=1, help="for more than one, take --clock wall on an idle machine")
    flags.set_defaults(clock="processor")
    settings = flags.parse_args()
    torch.set_num_threads(settings.threads)
    import_faiss().omp_set_num_threads(settings.threads)
    full = stored_sizes(settings.passage_reps)[-1]
    store = open_sizes(settings.passage_reps, [full])[full]
    own = open_sizes(settings.query_reps, [full])[full]
    ids = own.ids(np.arange(own.count))
    qrels = read_qrels(settings.qrels) if settings.qrels else None
    asked = np.array([row for row, name in enumerate(ids) if qrels is None or name in qrels])
    asked = asked[sample_rows(len(asked), settings.limit, settings.seed)]
    queries = own.vectors(asked).astype(np.float32)
    [(exact, _)] = exact_search(queries, store, _DEPTH, batch_size=-1)
    judged = JudgedQuality([qrels[ids[row]] for row in asked], store) if qrels is not None else None
    report = common.Report("search_ways", settings, passages=store.count, queries=len(asked))
    flat = search_common.plain_flat(store)
    with tempfile.TemporaryDirectory() as folder:
        for batch in settings.batch_size:
            ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {"plain": partial(_plain, flat, batch)}
            sizes: dict[str, float] = {"plain": 4.0 * full.dim}
            for way in settings.ways:
                ways[way], sizes[way] = _way(way, settings, full, batch, Path(folder))
            _compare(settings, ways, sizes, queries, exact, judged, batch, report)


def _way(
    way: str, settings: Any, full: Size, batch: int, folder: Path
) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
    """A function that finds rows for queries at the full size, and the bytes a passage that it scans."""
    stored, _, name = way.rpartition("=") if way.partition("=")[0] in QUANTISED else ("", "", way)
    if ":" not in name:
        factory, _, values = name.partition(";")
        store = open_sizes(settings.passage_reps, [full])[full]
        built = build_index(store, factory, folder / factory.replace(",", "-"), threads=settings.threads)
        index = open_index(folder / factory.replace(",", "-"), store)
        parameters = {key: float(value) for key, value in (one.split("=") for one in values.split(";") if one)}
        return partial(_by_index, index, parameters, batch, settings.threads), built.manifest.bytes_per_passage
    funnel = Funnel.parse(name).at_depth(_DEPTH)
    step = funnel.steps[0]
    stores = open_sizes(Path(settings.passage_reps) / stored, funnel.sizes)
    first = code_shortlister(step, stores[step.size], threads=settings.threads) if step.code else None
    bits = {"int8": 8.0, "int4": 4.0, "int2": 2.0, "int1": 1.0, "binary": 1.0}
    bytes_each = step.size.dim * bits[step.code] / 8 if step.code else row_bytes(stored or "float16", step.size.dim)
    if step.code is None and not stored:
        hold(stores[step.size], MAX_MEMORY // 2, batch)  # as a Searcher does
    return partial(_through, funnel, stores, first, batch, settings.threads), float(bytes_each)


def _plain(flat: Any, batch: int, queries: np.ndarray) -> np.ndarray:
    return search_common.plain_search(flat, queries, _DEPTH, batch)[0]


def _by_index(index: Any, parameters: dict[str, float], batch: int, threads: int, queries: np.ndarray) -> np.ndarray:
    found = np.full((len(queries), _DEPTH), -1)
    for start in range(0, len(queries), batch):
        rows, _ = index.search(queries[start : start + batch], _DEPTH, parameters=parameters, threads=threads)
        for line, own in enumerate(rows, start):
            found[line, : len(own)] = own
    return found


def _through(
    funnel: Funnel, stores: dict[Size, EmbeddingStore], first: Any, batch: int, threads: int, queries: np.ndarray
) -> np.ndarray:
    cut = {size: _unit(queries[:, : size.dim], stores[size]) for size in funnel.sizes}
    options: dict[str, Any] = {"batch_size": batch, "threads": threads}
    if first is None and batch >= 16:
        options["generator"] = search_common.generator("torch-fp32", batch, stores[funnel.sizes[0]])
    return np.concatenate([rows for rows, _ in funnel_search(cut, stores, funnel, first=first, **options)])


def _unit(queries: np.ndarray, store: EmbeddingStore) -> np.ndarray:
    if not store.spec.normalize:
        return queries
    return queries / np.linalg.norm(queries, axis=1, keepdims=True).clip(1e-12)


def _timed(run: Callable[[np.ndarray], np.ndarray], queries: np.ndarray, number: int) -> np.ndarray:
    return run(queries)


def _compare(
    settings: Any,
    ways: dict[str, Callable[[np.ndarray], np.ndarray]],
    sizes: dict[str, float],
    queries: np.ndarray,
    exact: np.ndarray,
    judged: JudgedQuality | None,
    batch: int,
    report: common.Report,
) -> None:
    found = {name: run(queries) for name, run in ways.items()}
    some = queries[: settings.queries]
    laps = {name: partial(_timed, run, some) for name, run in ways.items()}
    seconds = common.interleaved(laps, settings.rounds, settings.clock)
    kept = Agreement(exact)
    best = judged.scores(exact).mean() if judged is not None else None
    for name in ways:
        quality = {"recall_at_10": round(float(kept.scores(found[name]).mean()), 4)}
        if judged is not None and best is not None:
            score = float(judged.scores(found[name]).mean())
            quality |= {"ndcg_at_10": round(score, 4), "share_of_ndcg": round(score / float(best), 4)}
        report.line(
            f"{name} over plain FAISS, {batch} at once",
            "time of a query by IndexFlatIP / in this way, by --clock; higher is better",
            **common.ratio(seconds["plain"], seconds[name]),
            **quality,
            bytes_per_passage=round(sizes[name], 1),
            query_ms=round(1000 * float(np.median(seconds[name])) / len(some), 3),
        )


if __name__ == "__main__":
    main()
