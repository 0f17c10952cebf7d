"""transformers' Trainer with parts of the loss in its log, and readable log lines."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from starbucks_retrieval.cli.numbers import plain
from starbucks_retrieval.locks import LOCK
from starbucks_retrieval.trainer.checkpoints import CACHE
from starbucks_retrieval.trainer.processes import world

log = logging.getLogger(__name__)


class PartsTrainer(Trainer):
    """Trains a module that returns a loss and its parts, and logs the parts' means over steps and processes.

    The module's `step` is set to (seed, step, micro-step) before each forward pass: what is sampled follows it alone, so
    that all processes sample the same, and so does a resumed run. `at_the_end` tells whether the last step was done.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: dict[str, torch.Tensor] = {}
        self._parts_count = 0
        self._micro_step = (-1, 0)
        self.at_the_end = False
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(_Bar())
        self.add_callback(_LogLines())
        self.add_callback(_End(self))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's loss; its parts are kept for the next log line."""
        step = self.state.global_step
        self._micro_step = (step, self._micro_step[1] + 1 if self._micro_step[0] == step else 0)
        self.model.step = (self.args.seed, *self._micro_step)
        outputs = model(**inputs)
        for name, part in outputs["parts"].items():
            self._parts[name] = self._parts.get(name, 0) + part
        self._parts_count += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean parts of the steps since the last line, over all processes."""
        if "loss" in logs and self._parts_count:
            values = torch.stack([part.float() for part in self._parts.values()]) / self._parts_count
            if world() > 1:
                torch.distributed.all_reduce(values)
                values = values / world()
            logs |= dict(zip(self._parts, values.tolist()))
            self._parts, self._parts_count = {}, 0
        super().log(logs, start_time)

    def upload(self) -> None:
        """Push the output folder as it is: transformers' own push would put another card in the place of ours."""
        from huggingface_hub import HfApi

        self._finish_current_push()
        HfApi().upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=str(self.args.output_dir),
            commit_message="End of training",
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            ignore_patterns=["checkpoint-*", f"{CACHE}*", LOCK],
        )


class _End(TrainerCallback):
    """Notes that this process has done the last step."""

    def __init__(self, trainer: PartsTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.at_the_end = state.global_step >= state.max_steps


class _Bar(ProgressCallback):
    """transformers' progress bar without its own print of every log."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


class _LogLines(TrainerCallback):
    """One readable line per log, below the progress bar or instead of it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or not state.is_world_process_zero or "train_runtime" in logs:
            return
        numbers = {name: value for name, value in logs.items() if name != "epoch" and isinstance(value, float)}
        shown = "  ".join(f"{name} {plain(value, 4)}" for name, value in numbers.items())
        log.info("step %d of %d  %s", state.global_step, state.max_steps, shown)
