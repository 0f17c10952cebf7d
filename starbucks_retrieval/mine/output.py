"""The output of `mine`: whether it may be written, and warnings about its rows."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import left_by_killed_run, lock_of
from starbucks_retrieval.mine import MineArguments

log = logging.getLogger(__name__)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise UserError unless the output may be written.

    Args:
        output: The file.
        overwrite: It may exist. One that a killed run left may exist without that.
    """
    if output.is_dir():
        raise UserError(f"{output} is a folder", "name a file with --output_path")
    if output.exists() and not overwrite and not left_by_killed_run(output, lock_of(output)):
        raise UserError(f"{output} exists", "add --overwrite, or name another --output_path")
    parent = next(parent for parent in output.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{output} cannot be written: {parent} is not a writable folder", "name another --output_path")


def log_counts(arguments: MineArguments, counts: Counter[str]) -> None:
    """Log the warnings that the counts of `write_rows` give reason for.

    Args:
        arguments: Flags of the filters.
        counts: The first counts that `write_rows` returns.
    """
    if counts["left_out"]:
        log.warning("%d groups are left out: no text is known for any of their positives", counts["left_out"])
    if counts["other_text"]:
        log.warning(
            "%d positives have another text in the corpus than in their group: is it the right corpus?",
            counts["other_text"],
        )
    if counts["without_positive_score"] and (arguments.margin is not None or arguments.ratio is not None):
        log.warning(
            "--margin or --ratio did not apply to %d queries: none of their positives has a score (above 0, for --ratio)",
            counts["without_positive_score"],
        )
    if counts["without_negatives"]:
        log.warning("%d queries end without negatives", counts["without_negatives"])
