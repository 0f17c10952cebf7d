"""The command `starbucks mine`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.mine import MineArguments

_EXAMPLES = (
    "starbucks mine --dataset_path groups.jsonl --corpus_path corpus.jsonl --bm25 --output_path negatives.jsonl",
    "starbucks mine --dataset_path scifact --model_name_or_path model --size 6:128 --ratio 0.95 --output_path n.jsonl.gz",
)


def main(argv: Sequence[str]) -> None:
    """Parse, mine, summarise."""
    arguments, dry_run, common = parse_command(
        [MineArguments, DryRunArguments],
        argv,
        "starbucks mine",
        "Give every training query hard negatives: passages that BM25, a model or a run ranks high but that are not positives.",
        _EXAMPLES,
    )
    if dry_run.dry_run:
        from starbucks_retrieval.mine.api import plan_mining

        plan_mining(arguments).preview().show(common)
        return
    from starbucks_retrieval.mine.api import mine

    figures = mine(arguments, common.seed)
    drops = ", ".join(f"{count} by {name}" for name, count in figures["dropped"].items() if count) or "none"
    summary = (
        f"{figures['queries']} queries with {figures['mean_negatives']} negatives on average, "
        f"{figures['without_negatives']} with none; dropped: {drops}; in {figures['output']}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    exit_command(main)
