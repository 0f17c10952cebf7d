"""What a run does beside its steps: its progress bar, the lines that it prints, and its checkpoints."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ProgressCallback, TrainerState
from transformers.trainer_utils import SaveStrategy

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.models.weight_files import explain_damage
from starbucks_retrieval.trainer import SAVE_SECONDS, SAVE_STEPS, STATE, check_state
from starbucks_retrieval.trainer.distributed import first_process

log = logging.getLogger(__name__)

_LONGEST = 119  # characters of a line
_DEV = "eval_"
_LOOK_EVERY = 10  # steps between two looks at the clock, which all processes have to agree on


class Bar(ProgressCallback):
    """transformers' progress bar, which does not print the logs."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


class LogLines(TrainerCallback):
    """Prints one short line per log, and all of its numbers at `--log_level debug`. `training.json` keeps them too."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or not state.is_world_process_zero or "train_runtime" in logs:
            return
        step = f"step {state.global_step} of {state.max_steps}"
        numbers = {name: value for name, value in logs.items() if name != "epoch" and isinstance(value, float | int)}
        line = log_line(step, numbers)
        if line:
            log.info("%s", line)
        everything = "  ".join(f"{name} {format_number(value, 4)}" for name, value in numbers.items())
        log.debug("%s, everything: %s", step, everything)


def log_line(step: str, numbers: Mapping[str, float]) -> str:
    """Return the line about a log of training: the loss and its kinds, or the first measure of the dev set.

    Args:
        step: The start of the line.
        numbers: The log. Parts of the loss such as `ce/2:32` are averaged by the word before the slash, which leaves the
            mean over the sizes. Keys of the dev set begin with `eval_`.

    Returns:
        At most 119 characters; empty if the log has neither a loss nor a dev score.

    Example:
        >>> log_line("step 10 of 20", {"loss": 1.5, "learning_rate": 2e-5, "ce/2:32": 1.25, "ce/6:128": 0.75, "kl/2:32": 0.5})
        'step 10 of 20  loss 1.5  (ce 1, kl 0.5)  learning rate 2e-05'
        >>> log_line("step 20 of 20", {"eval_nDCG@10": 0.5, "eval_nDCG@10/2:32": 0.4, "eval_nDCG@10/6:128": 0.6})
        'step 20 of 20  dev nDCG@10 0.5000  (2:32 0.4000, 6:128 0.6000)'
    """
    if "loss" in numbers:
        kinds: dict[str, list[float]] = {}
        for name, value in numbers.items():
            if name not in ("loss", "grad_norm", "learning_rate"):
                kinds.setdefault(name.partition("/")[0], []).append(value)
        means = [f"{name} {format_number(sum(values) / len(values), 4)}" for name, values in kinds.items()]
        rate = f"  learning rate {format_number(numbers['learning_rate'], 3)}" if "learning_rate" in numbers else ""
        return _join(f"{step}  loss {format_number(numbers['loss'], 4)}", means, rate)
    dev = [name for name in numbers if name.startswith(_DEV)]
    if not dev:
        return ""
    at_sizes = [name for name in dev if name.startswith(f"{dev[0]}/")]
    ends = list(dict.fromkeys((at_sizes[0], at_sizes[-1]))) if len(at_sizes) > 1 else []
    scores = [f"{name.partition('/')[2]} {numbers[name]:.4f}" for name in ends]
    return _join(f"{step}  dev {dev[0].removeprefix(_DEV)} {numbers[dev[0]]:.4f}", scores, "")


def _join(head: str, details: list[str], end: str) -> str:
    """Return head, details in parentheses and end; the last details are left out if the line is too long."""
    for count in range(len(details), 0, -1):
        line = f"{head}  ({', '.join(details[:count])}){end}"
        if len(line) <= _LONGEST:
            return line
    return f"{head}{end}"[:_LONGEST]


class Checkpoints(TrainerCallback):
    """Writes no checkpoint at the end of a run that is shorter than `--save_steps`, and adds some to a slow run.

    transformers writes one after the last step, whatever the length of the run. A slow run with the default of
    `--save_steps` gets one after each quarter of an hour without one, so that it can be resumed too.
    """

    def __init__(self) -> None:
        self._saved = now()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = now()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.save_strategy != SaveStrategy.STEPS:
            return
        if state.global_step >= state.max_steps:
            control.should_save = control.should_save and state.max_steps >= state.save_steps
        elif args.save_steps == SAVE_STEPS and state.global_step % _LOOK_EVERY == 0:
            control.should_save |= first_process(lambda: seconds_since(self._saved) >= SAVE_SECONDS)


def damaged_checkpoint(checkpoint: str | None) -> contextlib.AbstractContextManager[None]:
    """Return a context that turns the exceptions of libraries that read a checkpoint into a UserError with its path."""
    return explain_damage(str(checkpoint), "delete this checkpoint, and resume from an earlier one")


class CheckpointTrainer(Trainer):
    """A Trainer that names a damaged checkpoint."""

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train. Raises UserError for a checkpoint whose state cannot be read."""
        if isinstance(resume_from_checkpoint, str):
            check_state(Path(resume_from_checkpoint))
            with damaged_checkpoint(resume_from_checkpoint):
                TrainerState.load_from_json(str(Path(resume_from_checkpoint) / STATE))
        return super().train(resume_from_checkpoint, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with damaged_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with damaged_checkpoint(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with damaged_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)
