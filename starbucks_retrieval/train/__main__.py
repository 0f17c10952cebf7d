"""The door of `train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import finish, run_command
from starbucks_retrieval.cli.precedence import parse_training
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.presets import PRESETS

_EPILOG = """Besides these, every flag of transformers' TrainingArguments: --output_dir (required), --max_steps,
--num_train_epochs, --per_device_train_batch_size, --learning_rate, --bf16, --gradient_checkpointing, --eval_steps,
--save_steps, --resume_from_checkpoint true, --report_to, --deepspeed, --fsdp ….
The order is default < preset < file < flag, whoever names the preset; `--print_config` shows every value and its source,
and the value `default` takes a flag that a preset sets back to its default."""


def main(argv: Sequence[str]) -> None:
    """Parse, train, summarise."""
    parsed = parse_training(
        TrainArguments,
        PRESETS,
        argv,
        "starbucks train",
        "Train one encoder whose embedding can be taken at every size of a ladder.",
        _EPILOG,
    )
    arguments, common = parsed.arguments, parsed.common
    from starbucks_retrieval.train.api import defaults_of, settings_of, train
    from starbucks_retrieval.trainer.distributed import shutdown
    from starbucks_retrieval.trainer.settings import show_configuration

    settings = settings_of(parsed.rest, arguments, common)
    if arguments.print_config:
        show_configuration(parsed, settings, defaults_of(arguments))
        return
    if arguments.dry_run:
        from starbucks_retrieval.train.dry_run import preview

        preview(arguments, settings).show(common)
        return
    figures = train(arguments, settings)
    shutdown()
    summary = f"{figures['steps']} steps in {figures['seconds']} s; model with sizes {figures['sizes']} in {figures['output_dir']}"
    finish(common, summary, figures)


if __name__ == "__main__":
    sys.exit(run_command(main))
