"""The command `encode`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from starbucks_retrieval.cli import (
    CommonArguments,
    exit_command,
    finish,
    log,
    parse_flags,
    quiet_unless_first,
    setup_logging,
)
from starbucks_retrieval.cli.checks import check_depth
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.encode.processes import PORT

_EXAMPLES = (
    "starbucks encode --model_name_or_path model --dataset_path corpus.jsonl --encode_output_path passages",
    "starbucks encode --model_name_or_path model --dataset_path queries.jsonl --encode_is_query --encode_output_path queries",
    "starbucks encode --model_name_or_path model --dataset_path scifact --sizes 2:32,6:128 --encode_output_path passages",
)


def main(argv: Sequence[str]) -> None:
    """Run the command, and print a summary."""
    (arguments, dry_run_args, common), _ = parse_flags(
        [EncodeArguments, DryRunArguments, CommonArguments],
        argv,
        "starbucks encode",
        "Write the embeddings of a corpus or of queries at all chosen sizes, in one pass; a rerun resumes.",
        _EXAMPLES,
    )
    common = quiet_unless_first(common)
    setup_logging(common)
    if PORT in os.environ:  # started by --num_processes: the parent prints the summary
        common = dataclasses.replace(common, quiet=True)
    check_depth(arguments.model_name_or_path, arguments.sizes)
    if dry_run_args.dry_run:
        from starbucks_retrieval.encode.plan import plan_encoding

        plan_encoding(arguments).preview().show(common)
        return
    from starbucks_retrieval.encode.api import encode

    figures = encode(arguments)
    parts = ", ".join(f"{name} {seconds} s" for name, seconds in figures["seconds_by_part"].items())
    log.debug("time: %s", parts)
    summary = (
        f"{figures['encoded']} of {figures['texts']} texts encoded at {len(figures['sizes'])} sizes, "
        f"{figures['texts_per_second']} texts/s in {figures['runtime']}; in {figures['output']}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    exit_command(main)
