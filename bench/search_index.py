"""Claim: approximate indexes answer several times the queries of exact search and find nearly the same, at every size.

HNSW, IVF with product quantization, and 8-bit numbers at each size: seconds to build, bytes a passage, recall@10 and @100
against exact search, and queries a second over exact search at the same depth and size. Each index is built once, so
the seconds of building are single ones. The recall is that of synthetic vectors.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common

from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.indexes import SavedIndex, build_index, open_index, recall
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.store import EmbeddingStore


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=200_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=256, help="queries a round")
    flags.add_argument("--sizes", default="all", help="some of the six default sizes, 2:32 to 12:768")
    flags.add_argument(
        "--factories",
        nargs="+",
        default=["HNSW32", "IVF{lists},PQ{codes}", "SQ8"],
        help="what FAISS builds; {lists}: a power of two below 4 sqrt(passages), {codes}: bytes that divide the dim",
    )
    flags.add_argument("--efSearch", type=int, nargs="+", default=[128, 512], help="of HNSW")
    flags.add_argument("--nprobe", type=int, nargs="+", default=[8, 32], help="of IVF")
    flags.add_argument("--rescore", type=int, default=4, help="best rows x depth scored again, of all but HNSW")
    flags.add_argument("--depth", type=int, default=100, help="passages per query")
    flags.add_argument("--max_memory", default="2GB", help="memory for vectors and result lists")
    settings = flags.parse_args()

    corpus = search_common.Corpus(settings.passages, settings.seed)
    sizes = Sizes.parse(settings.sizes, corpus.model_sizes)
    vectors = corpus.queries(settings.queries, sizes)
    report = common.Report("search_index", settings, vectors=corpus.describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size, store in corpus.write(folder / "passages", sizes).items():
            print(f"{size}: {store.count} passages", file=sys.stderr, flush=True)
            _study(store, vectors[size], folder / f"index-{size.layer}-{size.dim}", settings, report)


def _study(store: EmbeddingStore, queries: np.ndarray, folder: Path, settings: Any, report: common.Report) -> None:
    size = store.spec.size
    options: dict[str, Any] = {"max_memory": parse_bytes(settings.max_memory)}
    exact: search_common.Results = search_common.together(exact_search(queries, store, settings.depth, **options))
    contenders: dict[str, Callable[[int], object]] = {
        "exact": lambda number: list(exact_search(queries, store, settings.depth, **options))
    }
    told: dict[str, dict[str, Any]] = {}
    for factory in (_filled(template, settings.passages, size.dim) for template in settings.factories):
        built = build_index(store, factory, folder / factory.replace(",", "-"), **options)
        print(built, file=sys.stderr, flush=True)
        saved = open_index(built.folder, store)
        # A graph holds the vectors themselves: there is nothing to score again. Its least list is as long as the depth.
        rescore = 1 if factory.startswith("HNSW") else settings.rescore
        for parameters in _grid(saved, settings):
            name = " ".join([factory, *(f"{key}={value}" for key, value in parameters.items())])
            own = {"parameters": parameters, "rescore": rescore, **options}
            contenders[name] = partial(_search, saved, queries, settings.depth, own)
            found = recall(saved, queries, settings.depth, exact=exact[0], **own)
            told[name] = {key: round(share, 4) for key, share in found.items()} | {
                "build_seconds": round(built.seconds, 2),
                "train_seconds": round(built.train_seconds, 2),
                "bytes_per_passage": round(built.manifest.bytes_per_passage, 1),
                "rescore": rescore,
            }
    for run in contenders.values():
        run(0)
    seconds = common.interleaved(contenders, settings.rounds)
    for name, values in told.items():
        report.line(
            f"{size} {name} over exact",
            f"queries/s of the index / of exact search at {size}, depth {settings.depth}; higher is better. Recall: the "
            "share of the exact best k that are among the index's best k",
            **common.ratio(seconds["exact"], seconds[name]),
            **values,
            ours={"queries_per_second": common.per_second(len(queries), seconds[name])},
            rival={"queries_per_second": common.per_second(len(queries), seconds["exact"])},
            store_bytes_per_passage=size.dim * store.dtype.itemsize,
        )


def _search(saved: SavedIndex, queries: np.ndarray, depth: int, options: dict[str, Any], number: int) -> None:
    saved.search(queries, depth, **options)


def _grid(saved: SavedIndex, settings: Any) -> list[dict[str, int]]:
    """The settings of search to try on an index: one of its own parameters, or none."""
    for name in ("nprobe", "efSearch"):
        if name in saved.parameters:
            return [{name: value} for value in getattr(settings, name)]
    return [{}]


def _filled(template: str, passages: int, dim: int) -> str:
    """A factory string with its numbers: a byte for four numbers of short vectors, for eight of long ones."""
    lists = 1
    while 2 * lists <= 4 * passages**0.5:
        lists *= 2
    return template.format(lists=lists, codes=dim // 4 if dim <= 128 else dim // 8)


if __name__ == "__main__":
    main()
