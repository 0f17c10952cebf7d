"""The command `starbucks transfer`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, parse_command
from starbucks_retrieval.sentences import finish_with_table, size_table
from starbucks_retrieval.transfer import TransferArguments, transfer

_EXAMPLES = ("starbucks transfer --model_name_or_path model --data MR CR TREC --output transfer.json",)


def main(argv: Sequence[str]) -> None:
    """Parse, measure, print a table."""
    arguments, common = parse_command(
        [TransferArguments],
        argv,
        "starbucks transfer",
        "Classify texts by logistic regression on frozen embeddings, at every size from one encoding pass.",
        _EXAMPLES,
    )
    results = transfer(arguments, common.seed)
    counts = ", ".join(f"{cell.dataset} {cell.count}" for cell in {c.dataset: c for c in results.cells}.values())
    written = f"; in {arguments.output}" if arguments.output else ""
    summary = f"{results.label}: accuracy over texts: {counts}{written}"
    finish_with_table(common, size_table(results.cells), summary, results)


if __name__ == "__main__":
    exit_command(main)
