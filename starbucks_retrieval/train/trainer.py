"""transformers' Trainer around our module, data order, checkpoints and dev scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.train.dev import DevSet
from starbucks_retrieval.train.module import SRLModule

log = logging.getLogger(__name__)


class SRLTrainer(Trainer):
    """Trains an SRLModule; logs the loss of every size, scores the dev set at every size, saves plain model folders."""

    model: SRLModule

    def __init__(self, *args: Any, dev: DevSet | None = None, **kwargs: Any) -> None:
        super().__init__(*args, eval_dataset=dev, **kwargs)
        self.dev = dev
        self._parts: dict[str, torch.Tensor] = {}
        self._parts_count = 0
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(_Bar())
        self.add_callback(_LogLines())

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return EpochSampler(len(self.train_dataset), self.args.seed, lambda: int(self.state.epoch or 0))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's loss; its parts are kept for the next log line."""
        outputs = model(**inputs)
        for name, part in outputs["parts"].items():
            self._parts[name] = self._parts.get(name, 0) + part
        self._parts_count += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean parts of the steps since the last line. Raises UserError once the loss is no number."""
        if "loss" in logs and self._parts_count:
            logs |= {name: float(part) / self._parts_count for name, part in self._parts.items()}
            self._parts, self._parts_count = {}, 0
            if not math.isfinite(logs["loss"]):
                raise UserError(
                    f"the loss is {logs['loss']} at step {self.state.global_step}",
                    "lower --learning_rate or train with --bf16 instead of --fp16; resume from the last checkpoint",
                )
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the dev set at every size: eval_<measure>/<size>, and eval_<measure>, the mean over the ladder."""
        assert self.dev is not None
        was_training = self.model.training
        self.model.eval()
        precision = torch.bfloat16 if self.args.bf16 else None
        scores = self.dev.score(self.model.encoder, self.model.sizes, precision)
        self.model.train(was_training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if not self.args.should_save:  # every rank comes here, one writes
            return
        folder = Path(output_dir or self.args.output_dir or "")
        folder.mkdir(parents=True, exist_ok=True)
        self.model.encoder.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        log.info("best checkpoint: %s (%.4f)", Path(self.state.best_model_checkpoint).name, self.state.best_metric)
        load_weights(self.model, self.state.best_model_checkpoint)


def load_weights(module: SRLModule, folder: str) -> None:
    """Read a saved encoder's weights into a module that is already built."""
    from starbucks_retrieval.models.load import load_backbone

    backbone, _, _ = load_backbone(folder)
    module.encoder.backbone.load_state_dict(backbone.state_dict())


class EpochSampler(torch.utils.data.Sampler):
    """(epoch, row) pairs in an order that depends on the seed and the epoch alone."""

    def __init__(self, rows: int, seed: int, epoch: Any) -> None:
        self.rows = rows
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # The epoch is asked for here, not pushed by set_epoch: a resumed run's loader does not pass that on.
        epoch = self.epoch()
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return ((epoch, int(row)) for row in order)


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
