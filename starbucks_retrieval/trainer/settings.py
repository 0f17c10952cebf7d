"""Settings of transformers' Trainer: parsing, defaults, and the step and checkpoint counts that follow from them."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import json
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments, finish
from starbucks_retrieval.cli.precedence import ParsedTraining, flag_sources
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.trainer.checkpoints import whole_checkpoints

if TYPE_CHECKING:
    from transformers import TrainingArguments

# What must not change between the parts of one run.
_KEPT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "optim"),
    *("num_train_epochs", "max_steps", "seed", "bf16", "fp16"),
)


def hugging_face_arguments(argv: list[str], common: CommonArguments, defaults: dict[str, Any]) -> TrainingArguments:
    """TrainingArguments from flags, over `defaults`, over those that all stages share."""
    from transformers import HfArgumentParser, TrainingArguments

    if gives(argv, "deepspeed") and not importlib.util.find_spec("deepspeed"):
        raise UserError("--deepspeed needs deepspeed", "pip install 'starbucks-retrieval[deepspeed]'")

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(message, "see --help, and transformers' TrainingArguments for its flags")

    parser = Parser(TrainingArguments, allow_abbrev=False)
    parser.set_defaults(**shared_defaults(common) | defaults)
    try:
        with warnings.catch_warnings():
            # Presets say gradient_checkpointing, the name that every transformers 5 knows.
            warnings.filterwarnings("ignore", "`gradient_checkpointing", FutureWarning)
            (parsed,) = parser.parse_args_into_dataclasses(args=argv)
    except ValueError as error:
        raise UserError(" ".join(str(error).split()), "see transformers' TrainingArguments") from None
    if not parsed.output_dir:
        raise UserError("--output_dir is missing", "name the folder for the model")
    return parsed


def shared_defaults(common: CommonArguments) -> dict[str, Any]:
    """Our defaults for TrainingArguments, in every stage that trains."""
    import torch

    return {
        "logging_steps": 10,
        "save_total_limit": 2,
        "report_to": "none",
        "use_cpu": not torch.accelerator.is_available(),  # --bf16 is refused on a CPU that was not asked for
        "seed": common.seed,
        "data_seed": common.seed,
        "disable_tqdm": common.quiet or not sys.stderr.isatty(),
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "label_names": [],
        # Every step reaches every weight: looking for others would only cost time.
        "ddp_find_unused_parameters": False,
    }


def gives(argv: list[str], flag: str) -> bool:
    """Whether a flag is among the words of a command line."""
    return any(word == f"--{flag}" or word.startswith(f"--{flag}=") for word in argv)


def kept_settings(settings: TrainingArguments) -> dict[str, Any]:
    """Those settings that a resumed run must agree in with the run it goes on with."""
    return {name: str(getattr(settings, name)) for name in _KEPT} | {"processes": settings.world_size}


def show_configuration(parsed: ParsedTraining[Any], settings: TrainingArguments, defaults: dict[str, Any]) -> None:
    """Print every value of a stage that trains, and where it came from.

    Of transformers' settings those are shown that were set, that have a default of ours (`defaults` and the shared ones),
    or that a resumed run must agree in.
    """
    theirs = {field.name: field.default for field in dataclasses.fields(settings)}
    ours = shared_defaults(parsed.common) | defaults
    named = dict.fromkeys([*ours, *_KEPT, *parsed.sources])
    values = {name: getattr(settings, name) for name in named if name in theirs}
    found = {
        name: (value.value if isinstance(value, enum.Enum) else value, source)
        for name, (value, source) in flag_sources(parsed, values, theirs | ours).items()
    }
    if not parsed.common.json:
        rows = [(name, _shown(value), source) for name, (value, source) in found.items()]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        for name, value, source in rows:
            print(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}", flush=True)
    told = {name: {"value": value, "source": source} for name, (value, source) in found.items()}
    finish(parsed.common, "nothing was trained", {"configuration": told})


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)


STATES = 3  # of AdamW in a checkpoint: the weight and two moments
SINGLE = 4  # bytes of a float32


def rows_per_step(settings: TrainingArguments) -> int:
    """Rows of a step of all processes."""
    return int(settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size)


def count_steps(settings: TrainingArguments, rows: int | None) -> int | None:
    """Steps as transformers counts them, a last, smaller batch of an epoch among them; None for unknown `rows`."""
    if settings.max_steps > 0:
        return int(settings.max_steps)
    if rows is None:
        return None
    batches = math.ceil(rows / (settings.train_batch_size * settings.world_size))
    return math.ceil(settings.num_train_epochs * max(1, math.ceil(batches / settings.gradient_accumulation_steps)))


def count_checkpoints(settings: TrainingArguments, steps: int | None) -> int:
    """Checkpoints that lie in the folder in the end."""
    strategy, most = settings.save_strategy.value, settings.save_total_limit or 10**6
    if strategy == "no":
        return 0
    if strategy == "epoch" or steps is None:
        return min(most, math.ceil(settings.num_train_epochs))
    every = settings.save_steps if settings.save_steps >= 1 else max(1, math.ceil(settings.save_steps * steps))
    return min(most, max(1, math.ceil(steps / every)))


def output_state(settings: TrainingArguments, overwrite: bool) -> str:
    """What lies in the output folder, and what that means. Raises UserError where it is a file."""
    output = Path(str(settings.output_dir))
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file", "name a folder with --output_dir")
    checkpoints = whole_checkpoints(output)
    if checkpoints and str(settings.resume_from_checkpoint).lower() == "true":
        return f"goes on from {checkpoints[-1].name}"
    if not output.exists() or not any(output.iterdir()):
        return "new"
    if overwrite or settings.resume_from_checkpoint:
        return "not empty, written into"
    more = "; --resume_from_checkpoint true goes on" if checkpoints else ""
    return f"not empty: it would be refused without --overwrite_output_dir{more}"
