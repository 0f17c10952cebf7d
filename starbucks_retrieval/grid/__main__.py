"""The door of `grid`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from starbucks_retrieval.cli import CommonArguments, finish, parse_flags, run_command, setup_logging
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid.arguments import DeltaArguments, EncodingArguments, GridArguments
from starbucks_retrieval.grid.tables import matrices
from starbucks_retrieval.metrics.results import Results, read_results, write_results

EPILOG = (
    "starbucks grid --model_name_or_path model --dataset_path scifact --output model.json    |    "
    "starbucks grid --task sts --model_name_or_path model --data stsb    |    "
    "starbucks grid --input ours.json --minus theirs.json [--output deltas.json]"
)


def main(argv: Sequence[str]) -> None:
    """Parse, measure every size or compare two grids, print the matrix."""
    (asked, encoding, comparison, trying, common), _ = parse_flags(
        [GridArguments, EncodingArguments, DeltaArguments, DryRunArguments, CommonArguments],
        argv,
        "starbucks grid",
        "Measure a model at every layer and dim, from one encoding pass; or show what two such grids differ by.",
        EPILOG,
    )
    setup_logging(common)
    if comparison.input or comparison.minus:
        if trying.dry_run:
            raise UserError(
                "--input needs no dry run: nothing is measured", "leave out --dry_run, and --output to write nothing"
            )
        _compare(asked, comparison, common)
        return
    if trying.dry_run:
        from starbucks_retrieval.grid.dry_run import preview

        preview(asked, encoding).show(common)
        return
    if asked.task == "sts":
        from starbucks_retrieval.grid.pairs import grid_of_pairs

        results = grid_of_pairs(asked, encoding, common.seed)
        _show(results, f"{len(results.cells)} cells in {asked.target}", {"output": str(asked.target)}, common)
        return
    from starbucks_retrieval.grid.api import grid

    measured = grid(asked, encoding, common.seed)
    count, seconds = len(measured.results.cells), measured.seconds
    parts = ", ".join(f"{part} {value} s" for part, value in seconds.items())
    figures = {"output": str(asked.target), "count": count, "seconds_by_part": seconds}
    _show(measured.results, f"{count} cells in {asked.target} ({parts})", figures, common)


def _compare(asked: GridArguments, comparison: DeltaArguments, common: CommonArguments) -> None:
    if asked.model_name_or_path or asked.dataset_path:
        raise UserError("--input reads a result file, --model_name_or_path makes one", "do one after the other")
    if not comparison.input:
        raise UserError("--input is missing", "name the result file that --minus is taken off from")
    if not comparison.minus:
        results = read_results(comparison.input)
        _show(results, f"{len(results.cells)} cells of {results.label}", {}, common)
        return
    from starbucks_retrieval.grid.tables import deltas

    results = deltas(comparison.input, comparison.minus)
    if asked.output:
        write_results(asked.target, results)
    place = f", written to {asked.target}" if asked.output else ""
    _show(results, f"{results.label}: {len(results.cells)} cells{place}", {}, common, signed=True)


def _show(
    results: Results, summary: str, figures: dict[str, Any], common: CommonArguments, signed: bool = False
) -> None:
    if not common.json:
        print(matrices(results, signed))
    cells = [{name: value for name, value in cell.to_json().items() if name != "values"} for cell in results.cells]
    content = {**results.to_json(), "cells": cells}
    finish(common, summary, content | figures)


if __name__ == "__main__":
    sys.exit(run_command(main))
