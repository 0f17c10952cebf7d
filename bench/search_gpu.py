"""Figures of FAISS on a GPU: exact search, IVF and CAGRA over synthetic passages: build seconds, queries/s, recall.

The module `faiss` is that of faiss-gpu or faiss-gpu-cuvs; only the latter builds CAGRA.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import numpy as np
import search_common

from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.sizes import Sizes


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--device", default="cuda", help="cpu tries the benchmark out, without CAGRA")
    flags.add_argument("--passages", type=int, default=1_000_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=1024, help="queries a round")
    flags.add_argument("--sizes", default="2:32,6:128,12:768", help="some of the six default sizes")
    flags.add_argument("--depth", type=int, default=100, help="passages per query")
    flags.add_argument("--nprobe", type=int, default=32, help="lists that IVF reads")
    settings = flags.parse_args()
    common.need_gpu(settings.device)
    faiss = import_faiss()
    gpu = faiss.StandardGpuResources() if settings.device == "cuda" else None
    corpus = search_common.Corpus(settings.passages, settings.seed)
    report = common.Report("search_gpu", settings, vectors=corpus.describe(), faiss=faiss.__version__)
    sizes = Sizes.parse(settings.sizes, corpus.model_sizes)
    asked = corpus.queries(settings.queries, sizes)
    for size in sizes:
        passages, queries = corpus.vectors(size), asked[size]
        exact = _best(_flat(faiss, gpu, passages), queries, settings.depth)
        for name, build in _builders(faiss, gpu, settings).items():
            start = time.perf_counter()
            index = build(passages)
            seconds = time.perf_counter() - start
            laps = common.interleaved({name: partial(_search, index, queries, settings.depth)}, settings.rounds)
            report.line(
                f"{name} at {size}",
                "queries/s; recall: share of the exact best that is found; seconds to build, once",
                queries_per_second=common.per_second(len(queries), laps[name]),
                recall=round(search_common.overlap(exact, [_best(index, queries, settings.depth)], settings.depth), 4),
                build_seconds=round(seconds, 2),
            )


def _builders(faiss: Any, gpu: Any, settings: Any) -> dict[str, Callable[[np.ndarray], Any]]:
    def ivf(passages: np.ndarray) -> Any:
        lists = 2 ** int(np.log2(4 * len(passages) ** 0.5))
        index = faiss.index_factory(passages.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
        index = index if gpu is None else faiss.index_cpu_to_gpu(gpu, 0, index)
        index.train(passages)
        index.add(passages)
        index.nprobe = settings.nprobe
        return index

    def cagra(passages: np.ndarray) -> Any:
        index = faiss.GpuIndexCagra(gpu, passages.shape[1], faiss.METRIC_INNER_PRODUCT)
        index.train(passages)
        return index

    builders: dict[str, Callable[[np.ndarray], Any]] = {
        "exact": lambda passages: _flat(faiss, gpu, passages),
        "ivf": ivf,
    }
    if gpu is not None and hasattr(faiss, "GpuIndexCagra"):  # faiss-gpu-cuvs
        builders["cagra"] = cagra
    return builders


def _flat(faiss: Any, gpu: Any, passages: np.ndarray) -> Any:
    index = faiss.IndexFlatIP(passages.shape[1])
    index = index if gpu is None else faiss.index_cpu_to_gpu(gpu, 0, index)
    index.add(passages)
    return index


def _search(index: Any, queries: np.ndarray, depth: int, number: int) -> object:
    return index.search(queries, depth)


def _best(index: Any, queries: np.ndarray, depth: int) -> np.ndarray:
    return index.search(queries, depth)[1]


if __name__ == "__main__":
    main()
