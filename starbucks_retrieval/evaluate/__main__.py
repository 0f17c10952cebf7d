"""starbucks evaluate: score runs side by side, after a preflight."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.evaluate import ComparisonArguments, EvaluateArguments, evaluate


def main(argv: Sequence[str]) -> None:
    arguments, comparison, common = parse_command(
        [EvaluateArguments, ComparisonArguments],
        argv,
        "starbucks evaluate",
        "Score runs side by side, after a preflight.",
        (
            "starbucks evaluate --run bm25.trec ours.trec --qrels dl19 --baseline bm25 --output dl19.json",
            "starbucks evaluate --run scifact=a.trec fiqa=b.trec --qrels scifact=data/scifact fiqa=data/fiqa --label Ours",
        ),
    )
    evaluation = evaluate(arguments, comparison, common.seed)
    text = evaluation.table()
    if evaluation.comparisons:
        text += f"\n\n{evaluation.comparisons.table()}"
    if not common.json:
        print(text)
    finish(common, f"{text}\n" * common.json + evaluation.summary(), evaluation.figures())


if __name__ == "__main__":
    exit_command(main)
