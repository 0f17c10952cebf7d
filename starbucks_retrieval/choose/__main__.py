"""The command `starbucks choose`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.choose import ChooseArguments, choose
from starbucks_retrieval.cli import exit_command, finish, parse_command


def main(argv: Sequence[str]) -> None:
    """Parse the flags, choose, print the front."""
    arguments, common = parse_command(
        [ChooseArguments],
        argv,
        "starbucks choose",
        "The best size within a budget, the Pareto front of quality and cost, and sizes for the next training.",
        (
            "starbucks choose --input grid.json --budget_ms 5 --bytes_per_passage 256",
            "starbucks choose --input scifact.json nfcorpus.json --measure nDCG@10 --auto_sizes 4",
        ),
    )
    choice = choose(arguments)
    if not common.json:
        print(choice.table())
        if choice.model_sizes is not None:
            print(f"--sizes {choice.model_sizes}")
    over = f", averaged over {len(choice.datasets)} data sets" if len(choice.datasets) > 1 else ""
    summary = (
        f"* {choice.best.name}: {choice.reason}, {choice.best.quality:.4f}{over}; "
        f"k {choice.knee.name}: the knee of the Pareto front"
    )
    finish(common, "\n".join([summary, *choice.notes]), choice.to_json())


if __name__ == "__main__":
    exit_command(main)
