"""Claim: the funnel that `--funnel auto` chooses on tuning queries keeps 99 % of nDCG@10 on test queries, and is faster.

Stores of a real model (`starbucks encode`) are searched at the deepest stored size, through the funnel that is chosen on
the tuning queries, through a shallow funnel, and by plain FAISS (IndexFlatIP), in `--rounds` interleaved rounds. With
--passages the corpus is filled up with made-up passages: the mean of two real ones, brought to length 1. They are no
answers, so nDCG@10 stays a figure of real queries, but times are those of a large corpus.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common
import torch

from starbucks_retrieval.data.collection import read_qrels
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel import CODES, INDEX, Funnel
from starbucks_retrieval.search.funnel_auto import DIMS
from starbucks_retrieval.search.funnel_candidates import JudgedQuality
from starbucks_retrieval.search.funnel_choice import choose_funnel
from starbucks_retrieval.search.funnel_first_steps import IndexStep, code_shortlister, index_steps
from starbucks_retrieval.search.funnel_search import Shortlister, funnel_search
from starbucks_retrieval.search.indexes import build_index
from starbucks_retrieval.search.indexes.manifest import read_manifest
from starbucks_retrieval.search.pairs import open_pairs
from starbucks_retrieval.search.stores import SlicedStore, stored_sizes, write_vectors
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

_TIMED = 64


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passage_reps", required=True, help="passages, as encode wrote them")
    flags.add_argument("--query_reps", required=True, help="queries")
    flags.add_argument("--tune_qrels", required=True, help="judgements of the tuning queries")
    flags.add_argument("--test_qrels", required=True, help="judgements of the test queries")
    flags.add_argument("--passages", type=int, default=0, help="fill up to so many (default: as stored)")
    flags.add_argument("--batch_size", type=int, nargs="+", default=[64, 1], help="queries at once")
    flags.add_argument("--shallow", default="0:128@1000", help="first step of the funnel to compare with")
    flags.add_argument("--funnel", default=None, help="measure this one instead of choosing")
    flags.add_argument("--codes", nargs="*", default=list(CODES), help="codes to try")
    flags.add_argument(
        "--index", nargs="*", default=[], help="factories of indexes to build at the deepest size and try"
    )
    settings = flags.parse_args()
    sizes = stored_sizes(settings.passage_reps)
    full = sizes[-1]
    wanted = sorted({*sizes, *(Size(full.layer, dim) for dim in DIMS if dim < full.dim)})
    query_stores, stores = open_pairs(settings.query_reps, settings.passage_reps, wanted)
    rows = np.arange(query_stores[full].count)
    ids = query_stores[full].ids(rows)
    queries = {size: store.vectors(rows).astype(np.float32) for size, store in query_stores.items()}
    real = stores[full].count
    report = common.Report("search_auto", settings, passages={"real": real, "searched": max(real, settings.passages)})
    with tempfile.TemporaryDirectory() as folder:
        if settings.passages > real:
            stores = _filled(stores, settings.passages, Path(folder), settings.seed)
        steps: list[IndexStep] = []
        for number, factory in enumerate(settings.index):
            built = Path(folder) / f"index-{number}"
            build_index(stores[full], factory, built, seed=settings.seed)
            steps += index_steps({built: read_manifest(built)}, stores, named=True)
        for batch_size in settings.batch_size:
            _compare(settings, queries, ids, stores, steps, batch_size, report)


def _filled(stores: dict[Size, EmbeddingStore], count: int, folder: Path, seed: int) -> dict[Size, EmbeddingStore]:
    """The stores with made-up passages after the real ones; all sizes of a passage are made of the same two."""
    filled: dict[Size, EmbeddingStore] = {}
    for size, store in sorted(stores.items(), reverse=True):
        if isinstance(store, SlicedStore):
            filled[size] = SlicedStore(next(one for wide, one in filled.items() if wide.layer == size.layer), size.dim)
            continue
        rng = np.random.default_rng(seed)
        real = store.vectors(np.arange(store.count)).astype(np.float32)
        pairs = rng.integers(store.count, size=(count - store.count, 2))
        vectors = np.concatenate([real, real[pairs[:, 0]] + real[pairs[:, 1]]])
        vectors[store.count :] /= np.linalg.norm(vectors[store.count :], axis=1, keepdims=True).clip(1e-9)
        names = [*store.ids(np.arange(store.count)), *(f"made-up-{row}" for row in range(len(pairs)))]
        filled[size] = write_vectors(folder / str(size), names, vectors, "float16", size.layer)
    return filled


def _compare(
    settings: argparse.Namespace,
    queries: dict[Size, np.ndarray],
    ids: list[str],
    stores: dict[Size, EmbeddingStore],
    indexes: list[IndexStep],
    batch_size: int,
    report: common.Report,
) -> None:
    tune, test = read_qrels(settings.tune_qrels), read_qrels(settings.test_qrels)
    full = max(stores)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "generator": search_common.generator("auto", batch_size, stores[full]),
    }
    if settings.clock == "processor":
        torch.set_num_threads(1)
        import_faiss().omp_set_num_threads(1)
        options |= {"threads": 1}
    shares: dict[str, Any] = {}
    if settings.funnel:
        chosen = Funnel.parse(settings.funnel).at_depth(10)
    else:
        timed: dict[str, Any] = {"timer": _processor_time} if settings.clock == "processor" else {}
        timed |= {"codes": settings.codes, "indexes": indexes}
        choice = choose_funnel(queries, ids, stores, tune, seed=settings.seed, **options, **timed)
        print(choice, choice.finalists, file=sys.stderr, flush=True)
        chosen, shares = choice.funnel, {"share_on_tuning": round(choice.score / choice.full_score, 4)}
        taken = (choice.load_index, choice.index_search or "")
        indexes = [step for step in indexes if (step.folder, step.parameters) == taken]
        if indexes:
            shares["index"] = (
                f"{settings.index[int(indexes[0].folder.rpartition('-')[2])]} {indexes[0].parameters}".strip()
            )
    tested = [row for row, name in enumerate(ids) if name in test]
    quality = JudgedQuality([test[ids[row]] for row in tested], stores[full])
    asked = {size: own[tested] for size, own in queries.items()}
    funnels = {"full": Funnel.parse(f"{full}@10"), "chosen": chosen}
    if Size.parse(settings.shallow.partition("@")[0]) in stores:
        funnels["shallow"] = Funnel.parse(f"{settings.shallow},{full}@10")
    scores, contenders = {}, {}
    for name, funnel in funnels.items():
        step, held = funnel.steps[0], dict(stores)
        first = None
        if step.code:
            by_index = step.code == INDEX
            first = (
                indexes[0].shortlister() if by_index else code_shortlister(step, stores[step.size], seed=settings.seed)
            )
        if first is None:
            size = step.size
            held[size] = SlicedStore(stores[size], size.dim)  # a copy: its memory is given back
            held[size].hold(2**31)
        run = partial(_search, asked, held, funnel, first, options)
        scores[name] = quality.scores(run(len(tested))).mean()
        contenders[name] = run
    timed_runs: dict[str, Callable[[int], object]] = {name: partial(_timed, run) for name, run in contenders.items()}
    flat = import_faiss().IndexFlatIP(full.dim)
    for _, block in stores[full].blocks(65536, np.float32):
        flat.add(np.ascontiguousarray(block))
    timed_runs["faiss"] = partial(_by_faiss, flat, asked[full], batch_size)
    scores["faiss"] = scores["full"]  # both are exact
    seconds = common.interleaved(timed_runs, settings.rounds, settings.clock)
    for rival in [name for name in timed_runs if name != "chosen"]:
        report.line(
            f"{chosen} over {funnels.get(rival, 'IndexFlatIP')}, {batch_size} at once",
            f"time of a query through {rival} / through the chosen funnel; higher is better",
            **common.ratio(seconds[rival], seconds["chosen"]),
            ndcg={name: round(float(score), 4) for name, score in scores.items()},
            share_on_test=round(float(scores["chosen"] / scores["full"]), 4),
            share_of_rival=round(float(scores[rival] / scores["full"]), 4),
            **shares,
            test_queries=len(tested),
            query_ms={name: round(1000 * float(np.median(laps)) / _TIMED, 3) for name, laps in seconds.items()},
        )


def _processor_time(what: str, run: Callable[[], object]) -> float:
    """In place of `stopwatch`; `what` is not used."""
    began = time.process_time()
    run()
    return time.process_time() - began


def _timed(run: partial[np.ndarray], number: int) -> np.ndarray:
    return run(_TIMED)


def _by_faiss(index: Any, queries: np.ndarray, batch_size: int, number: int) -> None:
    for start in range(0, _TIMED, batch_size):
        index.search(queries[start : min(start + batch_size, _TIMED)], 10)


def _search(
    queries: dict, stores: dict, funnel: Funnel, first: Shortlister | None, options: dict, count: int
) -> np.ndarray:
    some = {size: queries[size][:count] for size in funnel.sizes}
    return np.concatenate([rows for rows, _ in funnel_search(some, stores, funnel, first=first, **options)])


if __name__ == "__main__":
    main()
