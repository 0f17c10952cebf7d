"""starbucks evaluate: score runs side by side, after a preflight."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_door, setup_logging
from starbucks_retrieval.evaluate.api import MEASURES, evaluate


@dataclass
class EvaluateArguments:
    """What is scored, and how"""

    run: list[str] = flag(None, "TREC run files, plain or .gz; several are laid side by side", required=True)
    qrels: str = flag(None, "relevance judgements: a file (TREC or BEIR tsv), a BEIR folder, ir:…", required=True)
    split: str = flag("test", "which judgements of a BEIR folder")
    queries: str | None = flag(None, "the queries searched: their order shows whether a run lost its end")
    measures: list[str] = flag(help="ir-measures' names, linear gain, trec_eval's order", factory=MEASURES.split)
    remove_identical_ids: bool = flag(False, "drop results that bear their query's own id (ArguAna, Quora)")
    per_query: str | None = flag(None, "tsv to write: run, query_id, measure, value")
    output: str | None = flag(None, "JSON to write: figures, findings, what made them")
    strict: bool = flag(False, "fail, and write nothing, when the preflight finds something serious")


def main(argv: Sequence[str]) -> None:
    (arguments, common), _ = parse_flags(
        [EvaluateArguments, CommonArguments], argv, "starbucks evaluate", "Score runs side by side, after a preflight."
    )
    setup_logging(common)
    flags = asdict(arguments)
    evaluation = evaluate(flags.pop("run"), flags.pop("qrels"), flags.pop("measures"), **flags)
    if not common.json:
        print(evaluation.table())
    finish(common, evaluation.table() if common.json else evaluation.summary(), evaluation.figures())


if __name__ == "__main__":
    sys.exit(run_door(main))
