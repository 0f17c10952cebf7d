"""Claim: the memory of exact search does not grow with the store.

Peak resident memory of `python -m starbucks_retrieval.search` over stores of 1 and 8 times the length, by each engine,
and of plain FAISS as the published search uses it: all vectors in memory in single precision. Every one is a fresh
process. Pages of the store that are mapped count while they are mapped.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import search_common

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import open_store

Run = dict[str, list[str]]  # docids of each query, best first


def main() -> None:
    if sys.argv[1:2] == ["--rival"]:
        _rival(*sys.argv[2:])
        return
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=100_000, help="passages of the store at 1x")
    flags.add_argument("--queries", type=int, default=256, help="queries of a search")
    flags.add_argument("--size", default="12:768", help="size of the vectors")
    flags.add_argument("--depth", type=int, default=1000, help="passages per query")
    flags.add_argument("--max_memory", default="128MB", help="what ours is told to keep to; less than the store at 1x")
    flags.add_argument("--engines", nargs="+", choices=["faiss", "torch"], default=["faiss", "torch"], help="of ours")
    flags.add_argument("--factors", type=int, nargs="+", default=[1, 8], help="store lengths for ours")
    flags.add_argument("--rival_factors", type=int, nargs="*", default=[1, 8], help="store lengths for the rival")
    settings = flags.parse_args()

    size = Size.parse(settings.size)
    report = common.Report("search_memory", settings, vectors=search_common.Corpus(1, settings.seed).describe())
    lengths = sorted({*settings.factors, *settings.rival_factors})
    contenders = dict.fromkeys(settings.engines, settings.factors) | {"plain FAISS": settings.rival_factors}
    peaks: dict[str, dict[int, list[int]]] = {name: {f: [] for f in fs} for name, fs in contenders.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for factor in lengths:
            corpus = search_common.Corpus(factor * settings.passages, settings.seed)
            corpus.write(folder / f"{factor}x", [size])
        corpus.write_queries(folder / "queries", [size], settings.queries)
        for _ in range(settings.rounds):
            found: dict[int, dict[str, Run]] = {}
            for factor in lengths:
                found[factor] = {}
                for contender, factors in contenders.items():
                    if factor in factors:
                        peak, run = _measure(contender, folder, factor, settings)
                        peaks[contender][factor].append(peak)
                        found[factor][contender] = run
                        print(f"{contender} {factor}x: {common.megabytes(peak)} MB", file=sys.stderr, flush=True)
                _check(found[factor], factor)

    for contender, own in peaks.items():
        first = min(own, default=1)
        for factor in sorted(own):
            if factor == first:
                continue
            grown = statistics.median(own[factor]) - statistics.median(own[first])
            report.line(
                f"{contender} at {factor}x over {first}x",
                f"peak memory of {contender} with {factor} times the store / with {first} times; lower is better, "
                "1 is flat",
                **common.ratio(own[factor], own[first]),
                peak_mb={f"{f}x": common.megabytes(statistics.median(own[f])) for f in (first, factor)},
                passages={f"{f}x": f * settings.passages for f in (first, factor)},
                store_mb={f"{f}x": common.megabytes(2 * f * settings.passages * size.dim) for f in (first, factor)},
                grown_mb=common.megabytes(grown),
            )


def _measure(contender: str, folder: Path, factor: int, settings: Any) -> tuple[int, Run]:
    """Peak bytes of one search, and each query's docids."""
    queries, passages, output = str(folder / "queries"), str(folder / f"{factor}x"), folder / "run"
    if contender == "plain FAISS":
        command = [sys.executable, __file__, "--rival", queries, passages, settings.size, str(settings.depth)]
        command.append(str(output))
    else:
        command = [sys.executable, "-m", "starbucks_retrieval.search", "--engine", contender, "--device", "cpu"]
        command += ["--query_reps", queries, "--passage_reps", passages, "--size", settings.size, "--quiet"]
        command += ["--depth", str(settings.depth), "--save_ranking_to", str(output)]
        command += ["--max_memory", settings.max_memory]
    peak = common.peak_memory(command)
    run: Run = {}
    with open(output, encoding="utf-8") as handle:
        for line in handle:
            query, _, docid, *_ = line.split()
            run.setdefault(query, []).append(docid)
    return peak, run


def _check(found: dict[str, Run], factor: int) -> None:
    """End the benchmark unless all contenders find the same passages, but for some that score nearly the same."""
    first, *others = found.values()
    for other in others:
        shared = statistics.mean(len({*first[query]} & {*other[query]}) / len(first[query]) for query in first)
        if first.keys() != other.keys() or shared < 0.999:
            sys.exit(f"at {factor}x the contenders find other passages: they do not do the same work")


def _rival(query_reps: str, passage_reps: str, size: str, depth: str, output: str) -> None:
    """Search the published way, and write a run."""
    passages, queries = (open_store(name, Size.parse(size)) for name in (passage_reps, query_reps))
    index = search_common.plain_flat(passages)
    query_ids, vectors = queries.consecutive(0, queries.count)
    rows, scores = search_common.plain_search(index, vectors.astype("float32"), min(int(depth), passages.count))
    with open(output, "w", encoding="utf-8") as handle:
        for query, own_rows, own_scores in zip(query_ids, rows, scores):
            for rank, (docid, score) in enumerate(zip(passages.ids(own_rows), own_scores), 1):
                handle.write(f"{query} Q0 {docid} {rank} {score} plain\n")


if __name__ == "__main__":
    main()
