"""Claim: a funnel from 2:32 to 12:768 answers many times the queries a second that exact search at 12:768 does.

2:32@K,12:768 over exact search at 12:768, ours and plain FAISS (IndexFlatIP in memory, 64 queries at a time), for K of
a grid, all at one depth; and for each K also one query at a time, as an interactive search has it. What the funnel loses is told as the share of the exact ten best that it finds; on these
vectors that is a figure of synthetic data, and says nothing about nDCG on real text.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common

from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

_TOLERANCE = 1e-5  # between scores of equal rank of ours and plain FAISS


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=1_000_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=256, help="queries a round")
    flags.add_argument("--first", default="2:32", help="size of the shortlist")
    flags.add_argument("--last", default="12:768", help="size of the results")
    flags.add_argument("--keep", type=int, nargs="+", default=[100, 300, 1000, 3000], help="K: lengths of shortlists")
    flags.add_argument("--depth", type=int, default=10, help="passages per query, of all contenders")
    flags.add_argument(
        "--engine", choices=search_common.ENGINES, default="faiss", help="ours: engine of exact search and shortlist"
    )
    flags.add_argument("--batch_size", type=int, default=1024, help="ours: queries of a pass over the store")
    flags.add_argument("--rival_batch_size", type=int, default=64, help="queries of a call of plain FAISS")
    flags.add_argument("--alone", type=int, default=16, help="queries that are also searched one by one")
    flags.add_argument("--max_memory", default="2GB", help="ours: memory for vectors and result lists")
    settings = flags.parse_args()
    first, last = Size.parse(settings.first), Size.parse(settings.last)
    funnels = {f"{first}@{keep},{last}": keep for keep in settings.keep if settings.depth <= keep}

    corpus = search_common.Corpus(settings.passages, settings.seed)
    queries = corpus.queries(settings.queries, [first, last])
    report = common.Report("search_funnel", settings, vectors=corpus.describe())
    with tempfile.TemporaryDirectory() as folder:
        stores = corpus.write(Path(folder), [first, last])
        options = {"batch_size": settings.batch_size, "max_memory": parse_bytes(settings.max_memory)}
        options["generator"] = search_common.generator(settings.engine, settings.queries, stores[first])
        index = search_common.plain_flat(stores[last])
        contenders: dict[str, Callable[[], Any]] = {
            "plain": partial(
                search_common.plain_search, index, queries[last], settings.depth, settings.rival_batch_size
            ),
            "exact": partial(exact_search, queries[last], stores[last], settings.depth, **options),
        }
        some = queries[last][: settings.alone]
        held = {size: EmbeddingStore.open(store.folders[0]) for size, store in stores.items()}
        held[first].hold(sys.maxsize)  # as the Searcher holds it
        contenders["plain alone"] = partial(search_common.plain_search, index, some, settings.depth, 1)
        for name in funnels:
            steps = Funnel.parse(name).at_depth(settings.depth)
            contenders[name] = partial(funnel_search, queries, stores, steps, **options)
            contenders[f"{name} alone"] = partial(_one_by_one, settings.alone, queries, held, steps, options)
        found: dict[str, search_common.Results] = {}

        def timed(name: str, number: int = 0) -> None:
            done = contenders[name]()
            found[name] = done if name.startswith("plain") else search_common.together(done)

        for name in contenders:
            timed(name)  # and the page cache has the stores
        seconds = common.interleaved({name: partial(timed, name) for name in contenders}, settings.rounds)

    exact_rows, exact_scores = found["exact"]
    difference = search_common.largest_difference(exact_scores, found["plain"][1])
    if difference > _TOLERANCE:
        sys.exit(f"scores differ by {difference}: exact search and plain FAISS do not do the same work")
    rivals = {"exact": f"exact search of ours at {last}", "plain": f"IndexFlatIP at {last} in memory"}
    for name, keep in funnels.items():
        _check(found["exact"], found[name], name)
        for rival, described in rivals.items():
            report.line(
                f"{name} over {rival} {last}",
                f"queries/s of the funnel / of {described}, depth {settings.depth}; higher is better",
                **common.ratio(seconds[rival], seconds[name]),
                keep=keep,
                overlap_at_10=search_common.overlap(exact_rows, found[name][0], 10),
                ours={"queries_per_second": common.per_second(settings.queries, seconds[name])},
                rival={"queries_per_second": common.per_second(settings.queries, seconds[rival])},
                largest_difference={"of_scores": difference, "tolerance": _TOLERANCE},
            )
        if not np.array_equal(found[f"{name} alone"][0], found[name][0][: settings.alone]):
            sys.exit(f"{name} finds other passages one query at a time")
        alone, plain = seconds[f"{name} alone"], seconds["plain alone"]
        report.line(
            f"{name} over plain {last}, one query at a time",
            f"time of a query with {rivals['plain']} / with the funnel, depth {settings.depth}; higher is better",
            **common.ratio(plain, alone),
            keep=keep,
            overlap_at_10=search_common.overlap(exact_rows, found[name][0], 10),
            ours={"query_ms": round(1000 * statistics.median(alone) / settings.alone, 2)},
            rival={"query_ms": round(1000 * statistics.median(plain) / settings.alone, 2)},
        )


def _one_by_one(count: int, queries: Any, stores: Any, steps: Funnel, options: dict[str, Any]) -> Iterator[Any]:
    for i in range(count):
        yield from funnel_search({size: own[i : i + 1] for size, own in queries.items()}, stores, steps, **options)


def _check(exact: search_common.Results, funnel: search_common.Results, name: str) -> None:
    """End the benchmark unless a passage that both find has the same score, to the bit, in both."""
    for own_rows, own_scores, rows, scores in zip(*exact, *funnel):
        _, own, other = np.intersect1d(own_rows, rows, return_indices=True)
        if not np.array_equal(own_scores[own], scores[other]):
            sys.exit(f"the scores of {name} are not those of exact search")


if __name__ == "__main__":
    main()
