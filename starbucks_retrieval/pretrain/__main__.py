"""The command `pretrain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.cli.precedence import parse_training
from starbucks_retrieval.pretrain.arguments import PRESETS, PretrainArguments

_EPILOG = """All flags of transformers' TrainingArguments work too: --output_dir and --max_steps (required),
--per_device_train_batch_size, --learning_rate, --lr_scheduler_type, --bf16, --gradient_checkpointing, --save_steps,
--resume_from_checkpoint true, --dataloader_num_workers 1 ….
The order is default < preset < file < flag, wherever the preset is named; `--print_config` shows every value and its
source, and the value `default` resets a flag that a preset sets."""


def main(argv: Sequence[str]) -> None:
    """Parse the flags and pre-train."""
    parsed = parse_training(
        PretrainArguments,
        PRESETS,
        argv,
        "starbucks pretrain",
        "Pre-train a backbone so that its small sizes represent a text as well as possible.",
        _EPILOG,
    )
    from starbucks_retrieval.pretrain.api import DEFAULTS, plan_pretraining, pretrain, pretraining_settings
    from starbucks_retrieval.trainer.settings import run_training

    settings = pretraining_settings(parsed.rest, parsed.common)
    run_training(parsed, settings, DEFAULTS, lambda *flags: plan_pretraining(*flags).preview(), pretrain, _summary)


def _summary(figures: dict[str, Any]) -> str:
    rate = figures["tokens"] / max(figures["seconds"], 1e-9)
    steps = f"{figures['steps']} steps in {figures['seconds']} s ({rate:.0f} tokens/s)"
    return f"{steps}; backbone in {figures['output_dir']}"


if __name__ == "__main__":
    sys.exit(run_command(main))
