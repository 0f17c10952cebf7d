"""transformers' Trainer with our data order, checkpoints and dev scores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.train.dev import DevSet
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.save import load_model, save_model
from starbucks_retrieval.trainer.checkpoints import complete_checkpoints
from starbucks_retrieval.trainer.distributed import world
from starbucks_retrieval.trainer.trainer import PartsTrainer

log = logging.getLogger(__name__)


class StarbucksTrainer(PartsTrainer):
    """Trains a TrainingModule: logs the parts of its loss, scores a dev set at every size, saves plain model folders."""

    model: TrainingModule

    def __init__(self, *args: Any, dev: DevSet | None = None, **kwargs: Any) -> None:
        super().__init__(*args, eval_dataset=dev, **kwargs)
        self.dev = dev

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return EpochSampler(len(self.train_dataset), self.args.seed, lambda: int(self.state.epoch or 0))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch. Raises UserError if it is NaN or infinite."""
        query_ids = inputs.pop("query_ids")
        outputs = super().compute_loss(model, inputs, return_outputs)
        loss = (outputs[0] if return_outputs else outputs).detach()
        if not torch.isfinite(loss).all():
            raise self._not_finite(loss.item(), query_ids)
        return outputs

    def _not_finite(self, loss: float, query_ids: list[str]) -> UserError:
        checkpoints = complete_checkpoints(Path(self.args.output_dir or ""))
        last = f"the last complete checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        names = ", ".join(query_ids[:8]) + (f" and {len(query_ids) - 8} more" if len(query_ids) > 8 else "")
        return UserError(
            f"the loss is {loss} at step {self.state.global_step + 1}, in the batch of queries {names}; {last}",
            "lower --learning_rate, train with --bf16 instead of --fp16, or check the texts of these queries",
        )

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the dev set: eval_<measure>/<size> at every size, and eval_<measure>, the mean over the sizes."""
        assert self.dev is not None
        # Sharded weights need all processes in every layer; otherwise only the first process scores.
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        scores: list[dict[str, float]] = [{}]
        if sharded or self.args.process_index == 0:
            was_training = self.model.training
            self.model.eval()
            precision = torch.bfloat16 if self.args.bf16 else None
            scores = [self.dev.score(self.model.encoder, self.model.objective.sizes, precision)]
            self.model.train(was_training)
        if world() > 1 and not sharded:
            torch.distributed.broadcast_object_list(scores, src=0)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores[0].items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.args.should_save:  # called in every process; one of them writes
            save_model(self.model, Path(output_dir or self.args.output_dir or ""), state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_model(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        log.info("best checkpoint: %s (%.4f)", Path(self.state.best_model_checkpoint).name, self.state.best_metric)
        if self.is_deepspeed_enabled:  # its engine reads the checkpoints that it wrote
            super()._load_best_model()
            return
        load_model(self.model, Path(self.state.best_model_checkpoint))


class EpochSampler(torch.utils.data.Sampler):
    """Yields (epoch, row) pairs in an order that depends on the seed and the epoch only.

    Args:
        rows: The number of training rows.
        seed: The seed.
        epoch: Called at the start of an epoch, returns its number.
    """

    def __init__(self, rows: int, seed: int, epoch: Any) -> None:
        self.rows = rows
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # Read here instead of set by set_epoch, which the data loader of a resumed run does not forward.
        epoch = self.epoch()
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return ((epoch, int(row)) for row in order)
