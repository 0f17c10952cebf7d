"""starbucks evaluate: score runs side by side, after a preflight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate import evaluate


@dataclass
class EvaluateArguments:
    """Runs, judgements and measures"""

    run: list[str] = flag(
        None, "TREC run files, plain or .gz; name=path scores one on the --qrels name=… only", required=True
    )
    qrels: list[str] = flag(
        None,
        "relevance judgements: files (TREC, or with a header), BEIR folders, short names, ir:… (required without --answers)",
    )
    answers: str | None = flag(
        None,
        "answers of questions instead: a passage that contains one is relevant (Natural Questions, as DPR)",
        rare=True,
    )
    corpus: str | None = flag(None, "with --answers: the passages that were searched", rare=True)
    split: str = flag("test", "split of a BEIR folder or short name")
    queries: list[str] | None = flag(
        None, "the queries that were searched: their order shows whether a run was truncated"
    )
    measures: list[str] | None = flag(
        None,
        "names of ir-measures, linear gain, trec_eval's order (default: RR@10 nDCG@10 R@1000; on dl19 and dl20 also "
        "RR(rel=2)@10 R(rel=2)@1000)",
    )
    remove_identical_ids: bool = flag(False, "drop results whose docid is the query's id (ArguAna, Quora)")
    label: list[str] | None = flag(
        None, "name of the runs in tables: one for all or one for each (default: the file's name)"
    )
    without: list[str] | None = flag(None, "sets to leave out of a further average", rare=True)
    per_query: str | None = flag(None, "tsv to write: run, query_id, measure, value, set")
    output: str | None = flag(None, "result file to write (JSON): figures, findings, provenance; report reads it")
    strict: bool = flag(False, "fail, and write nothing, if the preflight has a serious finding", rare=True)


@dataclass
class ComparisonArguments:
    """Comparison with a baseline, query by query"""

    baseline: str | None = flag(None, "run or label that all others are tested against")
    test: Literal["t", "randomization", "bootstrap"] = flag("t", "paired, two-tailed test")
    correction: Literal["holm", "bonferroni", "none"] = flag("holm", "over all comparisons of a family", rare=True)
    family: Literal["measure", "table"] = flag(
        "measure", "what a correction covers: the comparisons of one measure, or of the whole table", rare=True
    )
    margin: float | None = flag(
        None, "largest difference that does not matter: also tests whether runs are equivalent to the baseline"
    )
    alpha: float = flag(0.05, "level of significance of the marks + and -", rare=True)


def main(argv: Sequence[str]) -> None:
    (arguments, comparison, common), _ = parse_flags(
        [EvaluateArguments, ComparisonArguments, CommonArguments],
        argv,
        "starbucks evaluate",
        "Score runs side by side, after a preflight.",
        (
            "starbucks evaluate --run bm25.trec ours.trec --qrels dl19 --baseline bm25 --output dl19.json",
            "starbucks evaluate --run scifact=a.trec fiqa=b.trec --qrels scifact=data/scifact fiqa=data/fiqa --label Ours",
        ),
    )
    setup_logging(common)
    if arguments.qrels is None and arguments.answers is None:
        raise UserError("--qrels is missing", "name the judgements, or --answers and --corpus; see --help")
    flags = asdict(arguments) | asdict(comparison) | {"seed": common.seed, "without": arguments.without or ()}
    evaluation = evaluate(flags.pop("run"), flags.pop("qrels"), flags.pop("measures"), **flags)
    text = evaluation.table()
    if evaluation.comparisons:
        text += f"\n\n{evaluation.comparisons.table()}"
    if not common.json:
        print(text)
    finish(common, f"{text}\n" * common.json + evaluation.summary(), evaluation.figures())


if __name__ == "__main__":
    exit_command(main)
