"""The command `starbucks report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

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
    correction: Correction = flag("none", "for several comparisons; see --family", rare=True)
    family: Literal["size", "table"] = flag(
        "size", "what it covers: the methods on one data set at one size, or all comparisons of the table", rare=True
    )
    margin: float | None = flag(
        None, "largest difference that does not matter: also tests whether methods are equivalent to the baseline"
    )
    correlation_test: Literal["fisher", "williams"] = flag(
        "fisher", "what marks correlations: fisher as published, or williams where all pairs are kept", rare=True
    )
    measures: list[str] | None = flag(None, "measures to show (default: all in the files)")
    seeds: bool = flag(False, "files of one label are runs of several seeds: show means, test over queries and seeds")
    models: list[str] | None = flag(
        None, "LABEL=folder of methods scored by evaluate: were all trained with the same negatives, data and lengths?"
    )
    strict: bool = flag(False, "fail, and write nothing, where they were not", rare=True)
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
