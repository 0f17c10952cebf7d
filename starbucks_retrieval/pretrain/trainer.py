"""transformers' Trainer around pre-training: an endless stream, checkpoints that know their place in it, skipped steps."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.pretrain.save import load_model, save_model
from starbucks_retrieval.trainer.trainer import PartsTrainer

log = logging.getLogger(__name__)


class PretrainingTrainer(PartsTrainer):
    """Trains a PretrainingModule on PretrainingData."""

    model: PretrainingModule

    def __init__(self, *args: Any, max_skipped_steps: int = 100, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data_state: list[int] | None = None
        self.tokens = 0
        self._resumed_from: str | None = None
        self.skipper = SkipNonFinite(max_skipped_steps)
        self.add_callback(self.skipper)

    def get_train_dataloader(self) -> Any:
        """The stream itself: it is cut into batches and shared out among processes already."""
        workers = min(1, self.args.dataloader_num_workers)
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, num_workers=workers)

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train; a resumed run goes on with the random state of its checkpoint."""
        self._resumed_from = resume_from_checkpoint
        return super().train(resume_from_checkpoint, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The batch's loss; its place in the stream is kept for the next checkpoint."""
        if self._resumed_from:  # transformers restores it only where it skips through the data itself
            self._load_rng_state(self._resumed_from)
            self._resumed_from = None
        self.data_state = inputs.pop("state").tolist()
        self.tokens += int(inputs["attention_mask"].sum())
        return super().compute_loss(model, inputs, return_outputs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # Every process comes here, and has a place of its own; the state of the trainer, which makes a checkpoint
        # whole, is written afterwards.
        write_json(place_file(Path(output_dir), self.args.process_index), {"state": self.data_state})

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.args.should_save:
            save_model(self.model, Path(output_dir or self.args.output_dir or ""), state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_model(self.model, Path(resume_from_checkpoint))


def place_file(checkpoint: Path, process: int) -> Path:
    """Where a process keeps its place in the text."""
    return checkpoint / f"text-position-{process}.json"


def read_place(checkpoint: Path, process: int) -> list[int]:
    """The place in the text that a checkpoint was made at. Raises UserError where it is missing."""
    path = place_file(checkpoint, process)
    if not path.is_file():
        raise UserError(f"{checkpoint} lacks {path.name}", "resume with as many processes as the run began with")
    return json.loads(path.read_text(encoding="utf-8"))["state"]


class SkipNonFinite(TrainerCallback):
    """Leaves out a step whose gradient holds a value that is no number, as a whole; stops the run after too many."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.skipped = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.fp16:  # the gradient scaler meets overflows by itself, and expects some
            return
        parameters = [p for p in kwargs["model"].parameters() if p.grad is not None]
        if not parameters or bool(torch.isfinite(torch.nn.utils.get_total_norm([p.grad for p in parameters]))):
            return
        for parameter in parameters:
            parameter.grad = None
        self.skipped += 1
        log.warning(
            "step %d has a gradient that is no number: left out (%d so far)", state.global_step + 1, self.skipped
        )
        if self.skipped > self.limit:
            raise UserError(
                f"{self.skipped} steps had a gradient that is no number, the last one was step {state.global_step + 1}",
                "lower --learning_rate, train in fp32, or raise --max_skipped_steps",
            )
