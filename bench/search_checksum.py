"""Claim: checking the checksums of all stored vectors and ids that a search reads adds little to its time.

Three contenders write the same run from the same stores, which the page cache holds: a search that compares all blocks,
as the first one of a process does; one that remembers them, as each further one does; and one with --skip_checksum. The
command includes the start of its process. `cpu_ratio` compares the seconds of the processor, which other work on the
machine changes less.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import search_common

from starbucks_retrieval.search import FunnelArguments, SearchArguments, search
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import checksums

SMALL = Size(2, 32)


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0], rounds=7)
    flags.add_argument("--passages", type=int, default=100_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, nargs="+", default=[1, 300], help="queries of a search")
    flags.add_argument("--sizes", nargs="+", default=["6:128", "12:768"], help="sizes of exact search")
    flags.add_argument("--store_dtypes", nargs="+", default=["float16", "float32"], help="types of the stored numbers")
    flags.add_argument("--funnel", default="2:32@1000,12:768", help="a funnel; an empty text for none")
    flags.add_argument("--depth", type=int, default=1000, help="passages per query")
    settings = flags.parse_args()
    sizes = [Size.parse(size) for size in settings.sizes]
    corpus = search_common.Corpus(settings.passages, settings.seed)
    report = common.Report("search_checksum", settings, vectors=corpus.describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for dtype in settings.store_dtypes:
            corpus.write(folder / dtype / "p", {*sizes, SMALL}, dtype)
            for count in settings.queries:
                corpus.write_queries(folder / dtype / f"q{count}", {*sizes, SMALL}, count, dtype)
                for size in settings.sizes:
                    _study(folder / dtype, count, {"--size": size}, dtype, settings.rounds, settings.depth, report)
                if settings.funnel:
                    funnel = {"--funnel": settings.funnel}
                    _study(folder / dtype, count, funnel, dtype, settings.rounds, min(100, settings.depth), report)


def _study(
    folder: Path, queries: int, how: dict[str, str], dtype: str, rounds: int, depth: int, report: common.Report
) -> None:
    values: dict[str, Any] = {
        "passage_reps": str(folder / "p"),
        "query_reps": str(folder / f"q{queries}"),
        "depth": depth,
    }
    [(flag, value)] = how.items()

    def find(skip: bool, forget: bool) -> None:
        if forget:
            checksums._checked.clear()
        arguments = SearchArguments(
            **values, size=how.get("--size"), save_ranking_to=str(folder / "run.trec"), skip_checksum=skip
        )
        search(arguments, FunnelArguments(how.get("--funnel")))

    def command(more: list[str]) -> None:
        words = [word for name, one in values.items() for word in (f"--{name}", str(one))]
        words += [flag, value, "--save_ranking_to", str(folder / "run.trec"), "--quiet", *more]
        main = [sys.executable, "-m", "starbucks_retrieval", "search"]
        subprocess.run([*main, *words], check=True, stdout=subprocess.DEVNULL)

    used: dict[str, list[float]] = {}

    def counted(name: str, run: Callable[[], object]) -> Callable[[int], object]:
        def lap(number: int) -> None:
            before = _cpu_seconds()
            run()
            used.setdefault(name, []).append(_cpu_seconds() - before)

        return lap

    contenders: dict[str, Callable[[], object]] = {
        "without": partial(find, True, False),
        "first": partial(find, False, True),
        "further": partial(find, False, False),
        "command without": partial(command, ["--skip_checksum"]),
        "command": partial(command, []),
    }
    find(True, True)  # imports, and the page cache has the stores
    seconds = common.interleaved({name: counted(name, run) for name, run in contenders.items()}, rounds)
    for name, below in (("command", "command without"), ("first", "without"), ("further", "without")):
        what = {"command": "the command", "first": "the first search of a process", "further": "a further search"}[name]
        report.line(
            f"{value} {dtype}, {queries} queries: {what}",
            f"seconds of {what} with checksums / with --skip_checksum; 1 is no cost",
            **common.ratio(seconds[name], seconds[below]),
            cpu_ratio=common.ratio(used[name], used[below]),
            milliseconds={one: round(1000 * statistics.median(seconds[one]), 1) for one in (name, below)},
        )


def _cpu_seconds() -> float:
    """Seconds of the processor that this process and those that it waited for have taken."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


if __name__ == "__main__":
    main()
