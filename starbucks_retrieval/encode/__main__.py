"""The door of `encode`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import CommonArguments, finish, parse_flags, quiet_unless_first, run_command, setup_logging
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.encode.arguments import EncodeArguments
from starbucks_retrieval.encode.worker_group import PORT


def main(argv: Sequence[str]) -> None:
    """Parse, encode, summarise."""
    (arguments, trying, common), _ = parse_flags(
        [EncodeArguments, DryRunArguments, CommonArguments],
        argv,
        "starbucks encode",
        "Write the embeddings of a corpus or of queries at every asked size, in one pass; resumes by itself.",
    )
    common = quiet_unless_first(common)
    setup_logging(common)
    if PORT in os.environ:  # --num_processes started this one: its parent sums up
        common = dataclasses.replace(common, quiet=True)
    if trying.dry_run:
        from starbucks_retrieval.encode.dry_run import preview

        preview(arguments).show(common)
        return
    from starbucks_retrieval.encode.api import encode

    figures = encode(arguments)
    parts = ", ".join(f"{name} {seconds} s" for name, seconds in figures["seconds_by_part"].items())
    summary = (
        f"{figures['encoded']} of {figures['texts']} texts encoded at {len(figures['sizes'])} sizes, "
        f"{figures['texts_per_second']} texts/s in {figures['runtime']} ({parts}); in {figures['output']}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    sys.exit(run_command(main))
