"""The command `starbucks grid`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_command
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid import EncodingArguments, GridArguments
from starbucks_retrieval.grid.tables import matrices
from starbucks_retrieval.metrics.results import Results, read_results, write_results

EXAMPLES = (
    "starbucks grid --model_name_or_path model --dataset_path scifact --output model.json",
    "starbucks grid --task sts --model_name_or_path model --data stsb",
    "starbucks grid --input ours.json --minus theirs.json [--output deltas.json]",
)


@dataclasses.dataclass
class DeltaArguments:
    """What two grids differ by"""

    input: str | None = flag(None, "a result file: show it, or what is left of it after --minus")
    minus: str | None = flag(None, "the result file to take off, cell by cell; --output keeps the deltas")


def main(argv: Sequence[str]) -> None:
    """Measure every size, or compare two grids, and print the matrices."""
    arguments, encoding, comparison, dry_run, common = parse_command(
        [GridArguments, EncodingArguments, DeltaArguments, DryRunArguments],
        argv,
        "starbucks grid",
        "Measure a model at every layer and dim, from one encoding pass; or show the difference of two such grids.",
        EXAMPLES,
    )
    if comparison.input or comparison.minus:
        if dry_run.dry_run:
            raise UserError(
                "--input needs no dry run: nothing is measured", "leave out --dry_run, and --output to write nothing"
            )
        _compare(arguments, comparison, common)
        return
    if dry_run.dry_run:
        from starbucks_retrieval.grid.plan import preview

        preview(arguments, encoding).show(common)
        return
    if arguments.task == "sts":
        from starbucks_retrieval.grid.api import grid_of_pairs

        results = grid_of_pairs(arguments, encoding, common.seed)
        _show(results, f"{len(results.cells)} cells in {arguments.target}", {"output": str(arguments.target)}, common)
        return
    from starbucks_retrieval.grid.api import grid

    measured = grid(arguments, encoding, common.seed)
    count, seconds = len(measured.results.cells), measured.seconds
    parts = ", ".join(f"{part} {value} s" for part, value in seconds.items())
    figures = {"output": str(arguments.target), "count": count, "seconds_by_part": seconds}
    _show(measured.results, f"{count} cells in {arguments.target} ({parts})", figures, common)


def _compare(arguments: GridArguments, comparison: DeltaArguments, common: CommonArguments) -> None:
    if arguments.model_name_or_path or arguments.dataset_path:
        raise UserError("--input reads a result file, --model_name_or_path makes one", "do one after the other")
    if not comparison.input:
        raise UserError("--input is missing", "name the result file to subtract --minus from")
    if not comparison.minus:
        results = read_results(comparison.input)
        _show(results, f"{len(results.cells)} cells of {results.label}", {}, common)
        return
    from starbucks_retrieval.grid.tables import deltas

    results = deltas(comparison.input, comparison.minus)
    if arguments.output:
        write_results(arguments.target, results)
    written = f", written to {arguments.target}" if arguments.output else ""
    _show(results, f"{results.label}: {len(results.cells)} cells{written}", {}, common, signed=True)


def _show(
    results: Results, summary: str, figures: dict[str, Any], common: CommonArguments, signed: bool = False
) -> None:
    if not common.json:
        print(matrices(results, signed))
    finish(common, summary, results.without_values().to_json() | figures)


if __name__ == "__main__":
    exit_command(main)
