"""The command `starbucks report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging
from starbucks_retrieval.metrics.significance import Correction
from starbucks_retrieval.report import report
from starbucks_retrieval.sizes import ALIASES_HELP


@dataclass
class ReportArguments:
    """Report"""

    input: list[str] = flag(None, "result files of evaluate, sts, transfer, grid; LABEL=file renames", required=True)
    output_dir: str = flag(None, "folder for tables, figures and index.html", required=True)
    sizes: str | None = flag(
        None, f"the sizes of the tables: 2:32,4:64; all; or size aliases (default: those of the files). {ALIASES_HELP}"
    )
    baseline: str | None = flag(None, "label that the others are tested against, by size and data set")
    correction: Correction = flag("none", "for the methods compared on one data set at one size", rare=True)
    published: str | None = flag(None, "reference_results.json: adds the paper's scores, labelled as published")
    title: str = flag("Every size, measured", "title of the page")
    note: list[str] | None = flag(
        None, "sentences below every table, such as what the methods have in common", rare=True
    )
    no_figures: bool = flag(False, "tables and page only; needs no matplotlib")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, write the report, print its paths."""
    description = "Tables, figures and one HTML page in the papers' layouts, from result files."
    examples = (
        "starbucks report --input small.json big.json --output_dir report",
        "starbucks report --input Ours=grid.json --published reference_results.json --output_dir report",
    )
    (arguments, common), _ = parse_flags(
        [ReportArguments, CommonArguments], argv, "starbucks report", description, examples
    )
    setup_logging(common)
    flags = asdict(arguments)
    done = report(flags.pop("input"), flags.pop("output_dir"), **flags)
    finish(common, done.summary(), done.figures())


if __name__ == "__main__":
    exit_command(main)
