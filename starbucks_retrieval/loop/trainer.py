"""transformers' Trainer with parts of the loss in its log, and readable log lines."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from starbucks_retrieval.loop.processes import world

log = logging.getLogger(__name__)


class PartsTrainer(Trainer):
    """Trains a module that returns a loss and its parts, and logs the parts' means over steps and processes.

    The module's `step` is set to (seed, step, micro-step) before each forward pass: what is sampled follows it alone, so
    that all processes sample the same, and so does a resumed run.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: dict[str, torch.Tensor] = {}
        self._parts_count = 0
        self._micro_step = (-1, 0)
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(_Bar())
        self.add_callback(_LogLines())

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
        shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        log.info("step %d of %d  %s", state.global_step, state.max_steps, shown)
