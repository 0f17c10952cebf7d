"""Claim: exact search from half the bytes keeps up with plain FAISS, which holds everything in memory.

Queries a second over IndexFlatIP as the published search uses it: all vectors in memory in single precision, 64 queries
at a time, depth 1000, the index built outside the timed part; once with matrix products, as this package sets it, and once
as FAISS is set when it is imported. Ours read float16 stores, which the page cache holds, and
score what they propose again in double precision. Each figure also says how near ours come to the machine's bound: the
time that reading the store once, or one matrix product of all queries and passages, would take, as measured in the same
rounds. Nobody looks up docids.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common
import torch

from starbucks_retrieval.search import loops, parse_bytes
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.engines.torch import TorchCandidateGenerator
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.store import EmbeddingStore

_TOLERANCE = 1e-5  # between scores of equal rank; those of FAISS are sums in single precision
_PLAIN = {"products": "matrix products", "as-set": "its own settings"}
_STREAMED = 2**27  # numbers that are read to measure the bandwidth: far more than any cache holds


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=1_000_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=256, help="queries a round")
    flags.add_argument("--sizes", default="2:32,6:128,12:768", help="some of the six default sizes, 2:32 to 12:768")
    flags.add_argument(
        "--engines",
        nargs="+",
        choices=search_common.ENGINES,
        default=list(search_common.ENGINES),
        help="engines of ours",
    )
    flags.add_argument(
        "--rivals",
        nargs="*",
        choices=list(_PLAIN),
        default=list(_PLAIN),
        help="plain FAISS with matrix products, and as it is set when imported; none: only compare engines of ours",
    )
    flags.add_argument("--depth", type=int, default=1000, help="passages per query")
    flags.add_argument("--batch_size", type=int, default=1024, help="ours: queries of a pass over the store")
    flags.add_argument("--rival_batch_size", type=int, default=64, help="queries of a call of plain FAISS")
    flags.add_argument("--max_memory", default="2GB", help="ours: memory for vectors and result lists")
    flags.add_argument("--no_compiled_loops", action="store_true", help="ours without Numba")
    flags.add_argument("--store_dtype", choices=["float16", "float32"], default="float16", help="of the store")
    settings = flags.parse_args()
    settings.depth = min(settings.depth, settings.passages)
    loops._WORTH_COMPILING = 2**62 if settings.no_compiled_loops else 0  # compiled before the first round
    machine = common.machine()
    if "torch-bf16" in settings.engines and not (machine["avx512_bf16"] or machine["amx"]):
        print("this CPU has no instructions for bfloat16: torch-bf16 is left out", file=sys.stderr)
        settings.engines = [name for name in settings.engines if name != "torch-bf16"]

    corpus = search_common.Corpus(settings.passages, settings.seed)
    report = common.Report("search_exact", settings, vectors=corpus.describe())
    sizes = Sizes.parse(settings.sizes, corpus.model_sizes)
    vectors = corpus.queries(settings.queries, sizes)
    with tempfile.TemporaryDirectory() as folder:
        for size, store in corpus.write(Path(folder), sizes, settings.store_dtype).items():
            print(f"{size}: {store.count} passages", file=sys.stderr, flush=True)
            _study(store, vectors[size], settings, report)


def _study(store: EmbeddingStore, queries: np.ndarray, settings: Any, report: common.Report) -> None:
    contenders: dict[str, Callable[[], search_common.Results]] = {}
    if settings.rivals:
        index = search_common.plain_flat(store)
        plain = partial(search_common.plain_search, index, queries, settings.depth, settings.rival_batch_size)
        ways = {"products": plain, "as-set": partial(search_common.as_faiss_is_set, plain)}
        contenders = {f"plain {rival}": ways[rival] for rival in settings.rivals}
    for name in settings.engines:
        contenders[name] = partial(_ours, queries, store, name, settings)
    found = {name: run() for name, run in contenders.items()}  # and the page cache has the store

    def timed(name: str, number: int) -> None:
        found[name] = contenders[name]()

    laps: dict[str, Callable[[int], object]] = {"bandwidth": _stream()}
    for dtype in sorted({_arithmetic(name, queries, store) for name in settings.engines}):
        laps[f"matmul {dtype}"] = common.matmul(768, dtype)
    seconds = common.interleaved(
        laps | {name: partial(timed, name) for name in contenders}, settings.rounds, settings.clock
    )
    difference = _difference(found, settings.engines)

    stored = store.count * store.spec.size.dim * store.dtype.itemsize * -(-len(queries) // settings.batch_size)
    if {"faiss", "torch-fp32"} <= seconds.keys():
        report.line(
            f"{store.spec.size} torch-fp32 over our FAISS engine",
            "queries/s of torch-fp32 / of faiss, both over the same store; higher is better for torch",
            **common.ratio(seconds["faiss"], seconds["torch-fp32"]),
            passages=store.count,
            compiled_loops=loops._compiled is not None,
        )
    work = 2.0 * store.count * store.spec.size.dim * len(queries) / common.matmul_flops(768)
    reading = [stored / (4 * _STREAMED) * lap for lap in seconds["bandwidth"]]
    for name in settings.engines:
        mine, peak = seconds[name], seconds[f"matmul {_arithmetic(name, queries, store)}"]
        for rival in settings.rivals:
            report.line(
                f"{store.spec.size} {name} over plain FAISS with {_PLAIN[rival]}",
                f"queries/s of ours by {name} over a warm {settings.store_dtype} store / of IndexFlatIP in memory; "
                "higher is better",
                **common.ratio(seconds[f"plain {rival}"], mine),
                ours={"queries_per_second": common.per_second(len(queries), mine)},
                rival={"queries_per_second": common.per_second(len(queries), seconds[f"plain {rival}"])},
                engine=_taken(name, queries, store),
                largest_difference={"of_scores": difference, "tolerance": _TOLERANCE},
            )
        multiplying = [work * lap for lap in peak]
        report.line(
            f"{store.spec.size} {name} share of the bound",
            "seconds of reading the store or of the products alone, whichever is more, / of ours; higher is better",
            **common.ratio([max(pair) for pair in zip(reading, multiplying)], mine),
            of_bandwidth=common.ratio(reading, mine)["ratio"],
            of_matmul_peak=common.ratio(multiplying, mine)["ratio"],
            gigabytes_per_second=round(4 * _STREAMED / 1e9 / statistics.median(seconds["bandwidth"]), 1),
            peak_tflops=round(common.matmul_flops(768) / 1e12 / statistics.median(peak), 3),
        )


def _ours(queries: np.ndarray, store: EmbeddingStore, name: str, settings: Any) -> search_common.Results:
    options = {"batch_size": settings.batch_size, "max_memory": parse_bytes(settings.max_memory)}
    options["generator"] = search_common.generator(name, len(queries), store)
    return search_common.together(exact_search(queries, store, settings.depth, **options))


def _taken(name: str, queries: np.ndarray, store: EmbeddingStore) -> str:
    """The engine that works under this name, with torch's dtype."""
    generator = search_common.generator(name, len(queries), store)
    if not isinstance(generator, TorchCandidateGenerator):
        return "faiss"
    bf16 = generator.bf16 if loops.compiled_loops(0) is None else generator.bf16_in_loops
    return "torch-bf16" if bf16 else "torch-fp32"


def _arithmetic(name: str, queries: np.ndarray, store: EmbeddingStore) -> str:
    return "bf16" if _taken(name, queries, store) == "torch-bf16" else "fp32"


def _stream() -> Callable[[int], object]:
    """A contender that only reads memory, from end to end."""
    numbers = torch.ones(_STREAMED)
    return lambda number: numbers.sum()


def _difference(found: dict[str, search_common.Results], engines: list[str]) -> float:
    """The largest difference from plain FAISS's scores. Ends the benchmark if engines disagree in anything."""
    first = found[engines[0]]
    for name in engines:
        if not all(np.array_equal(*pair) for pair in zip(first, found[name])):
            sys.exit(f"{engines[0]} and {name} do not find the same")
    plain = [scores for name, (_, scores) in found.items() if name not in engines]
    difference = max((search_common.largest_difference(scores, first[1]) for scores in plain), default=0.0)
    if difference > _TOLERANCE:
        sys.exit(f"scores differ by {difference}: the contenders do not do the same work")
    return difference


if __name__ == "__main__":
    main()
