"""The command `starbucks sts`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, parse_command
from starbucks_retrieval.sentences import finish_with_table, size_table
from starbucks_retrieval.sts import StsArguments, difference_table, sts

_EXAMPLES = (
    "starbucks sts --model_name_or_path model --output sts.json",
    "starbucks sts --model_name_or_path model --data pairs.tsv --grid",
)


def main(argv: Sequence[str]) -> None:
    """Parse, measure, print a table."""
    arguments, common = parse_command(
        [StsArguments],
        argv,
        "starbucks sts",
        "Correlate cosines of scored pairs with their scores, at every size from one encoding pass.",
        _EXAMPLES,
    )
    results = sts(arguments, common.seed)
    table = size_table(results.cells)
    if "comparison" in results.more:
        table += "\n\n" + difference_table(results.more["comparison"])
    counts = ", ".join(f"{name} {data['pairs']}" for name, data in results.more["data"].items())
    written = f"; in {arguments.output}" if arguments.output else ""
    summary = f"{results.label}: {arguments.measure} x pairs: {counts}{written}"
    results.more.pop("gold", None)
    finish_with_table(common, table, summary, results)


if __name__ == "__main__":
    exit_command(main)
