"""The command `train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starbucks_retrieval.cli import exit_command
from starbucks_retrieval.cli.checks import NO_OUTPUT, check_training_flags
from starbucks_retrieval.cli.flags import flag_types
from starbucks_retrieval.cli.precedence import parse_training
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.presets import PRESETS

_EXAMPLES = (
    "starbucks train --model_name_or_path bert-base-uncased --dataset_path groups.jsonl --output_dir model --max_steps 1000",
    "starbucks train --model_name_or_path bert-base-uncased --dataset_path groups.jsonl --preset starbucks-msmarco --output_dir model",
    "starbucks train --model_name_or_path fitted --objective distil --dataset_path corpus.jsonl --output_dir model --max_steps 500",
)
_NOTES = """All flags of transformers' TrainingArguments work too: --output_dir (required), --max_steps,
--num_train_epochs, --per_device_train_batch_size, --learning_rate, --bf16, --gradient_checkpointing, --eval_steps,
--save_steps, --resume_from_checkpoint true, --report_to, --deepspeed, --fsdp ….
Checkpoints: every --save_steps steps (500), and every 15 minutes of a slow run; a run of fewer steps leaves none.
The order is default < preset < file < flag, wherever the preset is named; `--print_config` shows every value and its
source, and the value `default` resets a flag that a preset sets."""


def main(argv: Sequence[str]) -> None:
    """Parse the flags and train."""
    parsed = parse_training(
        TrainArguments,
        PRESETS,
        argv,
        "starbucks train",
        "Train one encoder whose embedding can be used at every size.",
        _EXAMPLES,
        _NOTES,
    )
    check_training_flags(parsed.rest, flag_types(TrainArguments), {"output_dir": NO_OUTPUT})
    from starbucks_retrieval.train.api import defaults_of, settings_of, train
    from starbucks_retrieval.train.dry_run import preview
    from starbucks_retrieval.trainer.settings import run_training

    arguments = parsed.arguments
    settings = settings_of(parsed.rest, arguments, parsed.common)
    run_training(parsed, settings, defaults_of(arguments), preview, train, _summary)


def _summary(figures: dict[str, Any]) -> str:
    steps = f"{figures['steps']} steps in {figures['seconds']} s"
    count = len(figures["sizes"].split(","))
    model = f"{steps}; model with {count} {'size' if count == 1 else 'sizes'} in {figures['output_dir']}"
    return f"{model}; all losses and scores in its training.json"


if __name__ == "__main__":
    exit_command(main)
