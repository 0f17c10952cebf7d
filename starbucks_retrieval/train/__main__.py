"""The door of `train`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import CommonArguments, finish, parse_flags, run_door, setup_logging
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.recipes import with_recipe

_EPILOG = """Besides these, every flag of transformers' TrainingArguments: --output_dir (required), --max_steps,
--num_train_epochs, --per_device_train_batch_size, --learning_rate, --bf16, --gradient_checkpointing, --eval_steps,
--save_steps, --resume_from_checkpoint true, --report_to, --deepspeed, --fsdp …"""


def main(argv: Sequence[str]) -> None:
    """Parse, train, summarise."""
    (arguments, common), rest = parse_flags(
        [TrainArguments, CommonArguments],
        with_recipe(list(argv)),
        "starbucks train",
        "Train one encoder whose embedding can be taken at every size of a ladder.",
        _EPILOG,
        extra=True,
    )
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first one speaks
        common = dataclasses.replace(common, quiet=True, json=False)
    setup_logging(common)
    from starbucks_retrieval.train.api import hugging_face_arguments, train
    from starbucks_retrieval.train.gather import leave

    show_bar = sys.stderr.isatty() and not common.quiet
    settings = hugging_face_arguments(rest, arguments, common.seed, show_bar)
    figures = train(arguments, settings)
    leave()
    summary = f"{figures['steps']} steps in {figures['seconds']} s; model with sizes {figures['sizes']} in {figures['output_dir']}"
    finish(common, summary, figures)


if __name__ == "__main__":
    sys.exit(run_door(main))
