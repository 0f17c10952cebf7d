"""What a run of transformers' Trainer would count and leave behind, by its settings alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.trainer.checkpoints import whole_checkpoints

if TYPE_CHECKING:
    from transformers import TrainingArguments

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
