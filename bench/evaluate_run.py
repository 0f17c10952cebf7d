"""Time of `evaluate` on one run over what pytrec_eval alone takes for the same measures.

The run has the shape of MS MARCO dev at depth 1000. Three contenders work on the same file and judgements: `evaluate`,
which reads, checks, measures and writes; pytrec_eval with its own reader; and pytrec_eval's measuring alone, its input
standing in memory. Their figures are compared before anything is timed.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np

from starbucks_retrieval.evaluate import EvaluateArguments, Evaluation, evaluate

MEASURES = {"RR": "recip_rank", "nDCG@10": "ndcg_cut_10", "R@1000": "recall_1000"}
_PASSAGES = 8_841_823


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--depth", type=int, default=1000)
    settings = parser.parse_args()
    try:
        import pytrec_eval
    except ImportError:
        sys.exit("pytrec_eval is missing\n  try: pip install pytrec_eval-terrier")
    logging.getLogger("starbucks_retrieval").setLevel(logging.ERROR)
    report = common.Report("evaluate_run", settings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, settings.queries, settings.depth, settings.seed)
        size = (folder / "run.trec").stat().st_size
        with open(folder / "qrels.txt") as handle:
            judge = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(handle), set(MEASURES.values()))

        def read() -> dict[str, dict[str, float]]:
            with open(folder / "run.trec") as handle:
                return pytrec_eval.parse_run(handle)

        def ours(number: int) -> Evaluation:
            run, judged, output = (str(folder / name) for name in ("run.trec", "qrels.txt", "results.json"))
            return evaluate(EvaluateArguments([run], [judged], measures=list(MEASURES), output=output))

        in_memory = read()
        _check(ours(0), judge.evaluate(in_memory))
        contenders: dict[str, Callable[[int], object]] = {
            "evaluate": ours,
            "pytrec_eval_with_reading": lambda number: judge.evaluate(read()),
            "pytrec_eval_in_memory": lambda number: judge.evaluate(in_memory),
        }
        seconds = common.interleaved(contenders, settings.rounds)
    shared = {
        "seconds": {name: [round(lap, 3) for lap in laps] for name, laps in seconds.items()},
        "results": settings.queries * settings.depth,
        "run_megabytes": common.megabytes(size),
    }
    for rival, words in (
        ("pytrec_eval_with_reading", "pytrec_eval's own reading of the file and measuring"),
        ("pytrec_eval_in_memory", "pytrec_eval's measuring of a run in memory, nothing read"),
    ):
        report.line(
            f"evaluate_over_{rival}",
            f"seconds of evaluate (reading, preflight, measuring, writing) over those of {words}",
            **common.ratio(seconds["evaluate"], seconds[rival]),
            **shared,
        )


def _write(folder: Path, queries: int, depth: int, seed: int) -> None:
    """A run of random passages with falling float32 scores, and one relevant passage a query, found by most."""
    rng = np.random.default_rng(seed)
    query_ids = rng.choice(1_200_000, queries, replace=False)
    with open(folder / "run.trec", "w") as run, open(folder / "qrels.txt", "w") as qrels:
        for query_id in query_ids.tolist():
            docids = rng.choice(_PASSAGES, depth, replace=False).tolist()
            scores = np.sort(rng.standard_normal(depth).astype(np.float32))[::-1].tolist()
            lines = zip(docids, scores)
            run.write("".join(f"{query_id} Q0 {d} {i} {s:.9g} starbucks-6:128\n" for i, (d, s) in enumerate(lines, 1)))
            rank = int(rng.geometric(0.02))
            qrels.write(f"{query_id} 0 {docids[rank] if rank < depth else _PASSAGES} 1\n")


def _check(ours: Evaluation, theirs: dict[str, dict[str, float]]) -> None:
    """End the program unless both give the same figure for every query."""
    (run,) = ours.runs
    for name, key in MEASURES.items():
        apart = max(abs(value - theirs[query_id][key]) for query_id, value in run.scores.per_query[name].items())
        if apart > 1e-6:
            sys.exit(f"{name} differs from pytrec_eval's {key} by {apart}")


if __name__ == "__main__":
    main()
