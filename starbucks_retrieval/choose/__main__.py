"""The command `starbucks choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starbucks_retrieval.choose import choose
from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging


@dataclass
class ChooseArguments:
    """Choice"""

    input: list[str] = flag(None, "result files of one model with cells at sizes, as grid and sts write", required=True)
    measure: str | None = flag(None, "measure of quality, averaged over data sets (default: the only one)")
    budget_ms: float | None = flag(None, "milliseconds to encode a query; needs grid --measure_cost")
    passage_ms: float | None = flag(None, "milliseconds to encode a passage, once; likewise")
    bytes_per_passage: float | None = flag(None, "bytes of a stored vector")
    min_quality: float | None = flag(None, "choose the cheapest size that reaches this, not the best one")
    auto_sizes: int | None = flag(None, "propose this many sizes for the next training")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, choose, print the front."""
    (arguments, common), _ = parse_flags(
        [ChooseArguments, CommonArguments],
        argv,
        "starbucks choose",
        "The best size within a budget, the Pareto front of quality and cost, and sizes for the next training.",
        (
            "starbucks choose --input grid.json --budget_ms 5 --bytes_per_passage 256",
            "starbucks choose --input scifact.json nfcorpus.json --measure nDCG@10 --auto_sizes 4",
        ),
    )
    setup_logging(common)
    flags = dict(vars(arguments))
    choice = choose(flags.pop("input"), **flags)
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
