"""Settings of transformers' Trainer: parsing, defaults, and the steps, checkpoints and bytes that follow from them."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib.util
import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments, finish, format_number, readable
from starbucks_retrieval.cli.dry_run import Preview, free_bytes
from starbucks_retrieval.cli.precedence import ParsedTraining, flag_sources
from starbucks_retrieval.cli.tables import align_columns
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.precision import warn_if_bf16_is_slow
from starbucks_retrieval.trainer import SAVE_STEPS, complete_checkpoints
from starbucks_retrieval.trainer.distributed import shutdown

if TYPE_CHECKING:
    from transformers import TrainingArguments

# These settings must be the same in all parts of a resumed run.
_FIXED = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "optim"),
    *("num_train_epochs", "max_steps", "seed", "bf16", "fp16"),
)
_ADAMW_COPIES = 3  # values of a weight in a checkpoint: itself and two moments
_FLOAT32 = 4  # bytes


def parse_settings(
    words: list[str], common: CommonArguments, defaults: dict[str, Any], stage: type
) -> TrainingArguments:
    """Parse transformers' TrainingArguments.

    Args:
        words: The words of the command line that are not ours.
        common: The flags of every command; the seed comes from them.
        defaults: The stage's defaults, which override those of all stages that train.
        stage: The dataclass of the stage's own flags, for the suggestion that answers an unknown flag.

    Raises:
        UserError: A flag is unknown or has a wrong value, `--output_dir` is missing, deepspeed is not installed, or
            there is no token for `--push_to_hub`.
    """
    from huggingface_hub import get_token
    from transformers import HfArgumentParser, TrainingArguments

    if has_flag(words, "deepspeed") and not importlib.util.find_spec("deepspeed"):
        raise UserError("--deepspeed needs deepspeed", "pip install 'starbucks-retrieval[deepspeed]'")

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(message, "see --help, and transformers' TrainingArguments for its flags")

    parser = Parser(TrainingArguments, allow_abbrev=False)
    parser.set_defaults(**shared_defaults(common) | defaults)
    try:
        with warnings.catch_warnings():
            # Presets use the name gradient_checkpointing, which every transformers 5 accepts.
            warnings.filterwarnings("ignore", "`gradient_checkpointing", FutureWarning)
            settings, unknown = parser.parse_args_into_dataclasses(args=words, return_remaining_strings=True)
    except ValueError as error:
        raise UserError(" ".join(str(error).split()), "see transformers' TrainingArguments") from None
    if unknown:
        name = unknown[0].partition("=")[0]
        known = [*parser._option_string_actions, *(f"--{field.name}" for field in dataclasses.fields(stage))]
        near = "".join(f"{one}, or " for one in difflib.get_close_matches(name, known, 1))
        hint = f"{near}see --help, and transformers' TrainingArguments for its flags"
        raise UserError(f"unknown argument {name}", hint)
    if not settings.output_dir:
        raise UserError("--output_dir is missing", "name the folder for the model")
    if settings.push_to_hub and not (settings.hub_token or get_token()):
        raise UserError("--push_to_hub needs a token of the Hugging Face hub", "run `hf auth login`, or set HF_TOKEN")
    return settings


def shared_defaults(common: CommonArguments) -> dict[str, Any]:
    """Return our defaults for TrainingArguments in every stage that trains: name → value.

    Args:
        common: The flags of every command; `seed` and `quiet` are read.
    """
    import torch

    return {
        "logging_steps": 10,
        "save_steps": SAVE_STEPS,
        "save_total_limit": 2,
        "report_to": "none",
        "use_cpu": not torch.accelerator.is_available(),  # transformers refuses --bf16 on a CPU without it
        "seed": common.seed,
        "data_seed": common.seed,
        "disable_tqdm": common.quiet or not sys.stderr.isatty(),
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "label_names": [],
        # Every step uses every weight; the search for unused ones would only cost time.
        "ddp_find_unused_parameters": False,
    }


def has_flag(words: list[str], flag: str) -> bool:
    """Return whether a flag is among the words of a command line.

    Args:
        words: The words.
        flag: The flag's name, without dashes in front.

    Example:
        >>> has_flag(["--max_steps", "5", "--fsdp=full_shard"], "fsdp")
        True
    """
    return any(word == f"--{flag}" or word.startswith(f"--{flag}=") for word in words)


def fixed_settings(settings: TrainingArguments) -> dict[str, Any]:
    """Return the settings that must not change when a run is resumed: JSON-ready, for `check_resume_config`."""
    return {name: str(getattr(settings, name)) for name in _FIXED} | {"processes": settings.world_size}


def run_training(
    parsed: ParsedTraining[Any],
    settings: TrainingArguments,
    defaults: dict[str, Any],
    preview: Callable[[Any, TrainingArguments], Preview],
    train: Callable[[Any, TrainingArguments], dict[str, Any]],
    summary: Callable[[dict[str, Any]], str],
) -> None:
    """Print the configuration, print the dry run, or train, as the flags say, and end the command.

    Args:
        parsed: The command line.
        settings: Its TrainingArguments.
        defaults: The stage's defaults for them.
        preview: Called for `--dry_run`.
        train: Returns JSON-ready figures about the finished run.
        summary: Returns one line about the figures.
    """
    arguments, common = parsed.arguments, parsed.common
    if arguments.print_config:
        _print_config(parsed, settings, defaults)
        return
    if settings.bf16:  # also by a preset, which is kept as published on every machine
        warn_if_bf16_is_slow(settings.device, "add --bf16 false", backward=True)
    if arguments.dry_run:
        preview(arguments, settings).show(common)
    else:
        figures = train(arguments, settings)
        shutdown()
        finish(common, summary(figures), figures)


def _print_config(parsed: ParsedTraining[Any], settings: TrainingArguments, defaults: dict[str, Any]) -> None:
    """Print the value and the source of every flag of the stage, and of transformers' settings that matter.

    Those are the settings that were given, that this package has a default for, or that a resumed run must not change.
    """
    theirs = {field.name: field.default for field in dataclasses.fields(settings)}
    ours = shared_defaults(parsed.common) | defaults
    names = dict.fromkeys([*ours, *_FIXED, *parsed.sources])
    values = {name: getattr(settings, name) for name in names if name in theirs}
    sources = {
        name: (value.value if isinstance(value, enum.Enum) else value, source)
        for name, (value, source) in flag_sources(parsed, values, theirs | ours).items()
    }
    if not parsed.common.json:
        rows = []
        for name, (value, source) in sources.items():
            nested = isinstance(value, list | dict)
            text = json.dumps(value, ensure_ascii=False, default=str) if nested else str(value)
            rows.append((name, text, source))
        print("\n".join(align_columns(rows, "lll")), flush=True)
    figures = {name: {"value": value, "source": source} for name, (value, source) in sources.items()}
    finish(parsed.common, "nothing was trained", {"configuration": figures})


def rows_per_step(settings: TrainingArguments) -> int:
    """Return the training rows of a step: batch of a process x batches of which gradients are accumulated x processes."""
    return int(settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size)


def count_steps(settings: TrainingArguments, rows: int | None) -> int | None:
    """Return the number of steps as transformers counts them; the last batch of an epoch may be smaller.

    Args:
        settings: The settings of the run.
        rows: Training rows, or None if unknown.
    """
    if settings.max_steps > 0:
        return int(settings.max_steps)
    if rows is None:
        return None
    batches = math.ceil(rows / (settings.train_batch_size * settings.world_size))
    return math.ceil(settings.num_train_epochs * max(1, math.ceil(batches / settings.gradient_accumulation_steps)))


def dry_run_figures(settings: TrainingArguments, parameters: int, steps: int | None, overwrite: bool) -> dict[str, Any]:
    """Return the figures of a dry run that depend on the settings and the size of the model only.

    Args:
        settings: The settings of the run.
        parameters: Weights that are trained.
        steps: Steps of the run, or None if unknown.
        overwrite: Whether the output folder may be overwritten.

    Returns:
        JSON-ready values: steps, rows per step, devices, checkpoints, bytes on the disk and in memory, and the state of
        the output folder.

    Raises:
        UserError: The output folder is a file.
    """
    checkpoints = _count_checkpoints(settings, steps)
    output = str(settings.output_dir)
    return {
        "steps": steps,
        "rows_per_step": rows_per_step(settings),
        "device": str(settings.device),
        "processes": settings.world_size,
        "checkpoints": checkpoints,
        "bytes": parameters * _FLOAT32 * (1 + checkpoints * _ADAMW_COPIES),
        "memory": parameters * _FLOAT32 * (_ADAMW_COPIES + 1),
        "output_dir": output,
        "state": _output_state(settings, overwrite),
        "free_bytes": free_bytes(output),
    }


def dry_run_lines(figures: dict[str, Any], model: str, more: str) -> list[tuple[str, str]]:
    """Return the lines of a dry run about the figures of `dry_run_figures`.

    Args:
        figures: The figures.
        model: The word for what is trained, as "model".
        more: What needs memory besides weights, gradients and the optimizer.

    Returns:
        Pairs of a heading and a text: the device, the bytes on the disk, and the memory.
    """
    processes = f" in {figures['processes']} processes" if figures["processes"] > 1 else ""
    saved = f"{figures['checkpoints']} checkpoints beside the {model}" if figures["checkpoints"] else "no checkpoints"
    free = "" if figures["free_bytes"] is None else f"; {readable(figures['free_bytes'])} free there"
    output = f"to {figures['output_dir']} ({figures['state']}){free}"
    return [
        ("device", f"{figures['device']}{processes}"),
        ("writes", f"about {readable(figures['bytes'])} with {saved}, {output}"),
        ("memory", f"{readable(figures['memory'])} for weights, gradients and optimizer; {more} come on top"),
    ]


def _count_checkpoints(settings: TrainingArguments, steps: int | None) -> int:
    """Return the number of checkpoints in the output folder at the end of the run, without those of a slow run."""
    strategy, limit = settings.save_strategy.value, settings.save_total_limit or 10**6
    if strategy == "no":
        return 0
    if strategy == "epoch" or steps is None:
        return min(limit, math.ceil(settings.num_train_epochs))
    every = settings.save_steps if settings.save_steps >= 1 else max(1, math.ceil(settings.save_steps * steps))
    return min(limit, math.ceil(steps / every)) if steps >= every else 0


def _output_state(settings: TrainingArguments, overwrite: bool) -> str:
    output = Path(str(settings.output_dir))
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file", "name a folder with --output_dir")
    checkpoints = complete_checkpoints(output)
    if checkpoints and str(settings.resume_from_checkpoint).lower() == "true":
        return f"resumes from {checkpoints[-1].name}"
    if not output.exists() or not any(output.iterdir()):
        return "new"
    if overwrite or settings.resume_from_checkpoint:
        return "not empty; files may be overwritten"
    more = "; --resume_from_checkpoint true resumes" if checkpoints else ""
    return f"not empty: refused without --overwrite_output_dir{more}"


def recipe_of(settings: TrainingArguments) -> dict[str, Any]:
    """Return the settings that a model card lists: heading in the card → value."""
    return {
        "learning rate": settings.learning_rate,
        "schedule": f"{settings.lr_scheduler_type.value}, warm-up {format_number(settings.warmup_steps)}",
        "weight decay": settings.weight_decay,
        "precision": "bf16" if settings.bf16 else "fp16" if settings.fp16 else "fp32",
        "processes": settings.world_size,
        "seed": settings.seed,
    }
