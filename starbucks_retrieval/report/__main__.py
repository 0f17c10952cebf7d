"""The command `starbucks report`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.report import ReportArguments, report


def main(argv: Sequence[str]) -> None:
    """Parse the flags, write the report, print its paths."""
    description = "Tables, figures and one HTML page in the papers' layouts, from result files."
    examples = (
        "starbucks report --input small.json big.json --output_dir report",
        "starbucks report --input Ours=grid.json --published reference_results.json --output_dir report",
    )
    arguments, common = parse_command([ReportArguments], argv, "starbucks report", description, examples)
    done = report(arguments)
    finish(common, done.summary(), done.figures())


if __name__ == "__main__":
    exit_command(main)
