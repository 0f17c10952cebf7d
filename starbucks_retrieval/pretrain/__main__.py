"""The door of `pretrain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from starbucks_retrieval.cli import finish, run_command
from starbucks_retrieval.cli.precedence import parse_training
from starbucks_retrieval.pretrain.arguments import PRESETS, PretrainArguments

_EPILOG = """Besides these, every flag of transformers' TrainingArguments: --output_dir and --max_steps (required),
--per_device_train_batch_size, --learning_rate, --lr_scheduler_type, --bf16, --gradient_checkpointing, --save_steps,
--resume_from_checkpoint true, --dataloader_num_workers 1 ….
The order is default < preset < file < flag, whoever names the preset; `--print_config` shows every value and its source,
and the value `default` takes a flag that a preset sets back to its default."""


def main(argv: Sequence[str]) -> None:
    """Parse, pre-train, summarise."""
    parsed = parse_training(
        PretrainArguments,
        PRESETS,
        argv,
        "starbucks pretrain",
        "Pre-train a backbone so that its small sizes carry as much of a text as they can.",
        _EPILOG,
    )
    arguments, common = parsed.arguments, parsed.common
    from starbucks_retrieval.pretrain.api import DEFAULTS, pretrain, settings_of
    from starbucks_retrieval.trainer.distributed import shutdown
    from starbucks_retrieval.trainer.settings import show_configuration

    settings = settings_of(parsed.rest, common)
    if arguments.print_config:
        show_configuration(parsed, settings, DEFAULTS)
        return
    if arguments.dry_run:
        from starbucks_retrieval.pretrain.dry_run import preview

        preview(arguments, settings).show(common)
        return
    figures = pretrain(arguments, settings)
    shutdown()
    rate = figures["tokens"] / max(figures["seconds"], 1e-9)
    summary = (
        f"{figures['steps']} steps in {figures['seconds']} s ({rate:.0f} tokens/s); backbone in {figures['output_dir']}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    sys.exit(run_command(main))
