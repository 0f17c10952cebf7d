"""The command `starbucks fit`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.fit import FitArguments

_EXAMPLES = (
    "starbucks fit --model_name_or_path BAAI/bge-small-en-v1.5 --dataset_path corpus.jsonl --output_dir fitted",
    "starbucks fit --model_name_or_path model --dataset_path corpus.jsonl --query_path queries.jsonl --output_dir fitted",
)


def main(argv: Sequence[str]) -> None:
    """Fit, then print the grid, the recommended sizes and the next command."""
    arguments, dry_run_args, common = parse_command(
        [FitArguments, DryRunArguments],
        argv,
        "starbucks fit",
        "Make small sizes of any encoder good in minutes, from texts without labels; a rerun resumes.",
        _EXAMPLES,
    )
    if dry_run_args.dry_run:
        from starbucks_retrieval.fit.plan import plan_fit

        plan_fit(arguments).preview().show(common)
        return
    from starbucks_retrieval.fit.api import fit
    from starbucks_retrieval.fit.card import grid_table

    figures = fit(arguments)
    if not common.json:
        print("share of the ten nearest texts that stay the same, cut → fitted (* sizes of the model):\n")
        print(grid_table(figures["grid"], figures["sizes"]))
        print()
    smallest = figures["sizes"][0]
    encode = f"starbucks encode --model_name_or_path {shlex.quote(figures['output'])} --sizes {smallest} …"
    summary = (
        f"{figures['texts']} texts fitted, {figures['held_out']} held out, {figures['seconds']:.0f} s; "
        f"sizes {','.join(figures['sizes'])}; in {figures['output']}\nnext: {encode}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    exit_command(main)
