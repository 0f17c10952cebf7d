"""transformers' Trainer with a log of the parts of the loss, and saving at the end of a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from starbucks_retrieval.cli import format_number
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import LOCK
from starbucks_retrieval.trainer.checkpoints import CACHE
from starbucks_retrieval.trainer.distributed import world

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
        shown = "  ".join(f"{name} {format_number(value, 4)}" for name, value in numbers.items())
        log.info("step %d of %d  %s", state.global_step, state.max_steps, shown)


log = logging.getLogger(__name__)

Work = Callable[[Any], None]


def train_and_keep(trainer: PartsTrainer, resume: str | None, record: Work, card: Work) -> Any:
    """Train, then write the weights, training.json by `record`, README.md by `card`, and push if that is asked for.

    Both are called with what Trainer.train returned, by the first process alone. Where one of them or the push fails,
    a warning says so and what to do, and the run is a success. Any other failure is raised; if the last step had been
    done by then, by a dev score or a report that fails at the end, weights and record are written before that.
    """
    try:
        done = trainer.train(resume_from_checkpoint=resume)
    except Exception:
        # Shards of weights can only be gathered where all processes came here, and one may have failed alone.
        if trainer.at_the_end and not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            _write(trainer, None, record, card)
            log.warning("the last step was done before this failed: the model is in %s", trainer.args.output_dir)
        raise
    _write(trainer, done, record, card)
    if trainer.args.push_to_hub and trainer.args.process_index == 0:
        output = trainer.args.output_dir
        by_hand = f"see to the network and to `hf auth login`, then: hf upload {trainer.hub_model_id} {output}"
        with _warned(f"{output} was not pushed", by_hand):
            trainer.upload()
    return done


def _write(trainer: PartsTrainer, done: Any, record: Work, card: Work) -> None:
    output = Path(str(trainer.args.output_dir))
    try:
        trainer.save_model(_internal_call=True)  # which does not push: nothing else is there yet
    finally:
        if trainer.args.process_index == 0:
            with _warned(f"{output}/training.json was not written", "the weights are whole; keep this log beside them"):
                record(done)
            with _warned(
                f"{output}/README.md was not written", "nothing reads it: write it by hand from training.json"
            ):
                card(done)


@contextlib.contextmanager
def _warned(what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("%s: %s: %s\n  try: %s", what, type(error).__name__, " ".join(str(error).split()), hint)
        log.debug("what failed:", exc_info=True)


class GradientCheckpointing(nn.Module):
    """A module whose `hf_model` can recompute its layers, under both names that transformers' Trainer calls.

    `recomputing` says whether it does; what else keeps activations should then follow.
    """

    recomputing = False

    @property
    def hf_model(self) -> Any:
        """The model whose layers are recomputed."""
        raise NotImplementedError

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations.

        Raises UserError for an architecture that cannot.
        """
        model = self.hf_model
        if not model.supports_gradient_checkpointing:
            raise UserError(
                f"{model.config.model_type!r} has no gradient checkpointing", "drop --gradient_checkpointing"
            )
        # The re-entrant kind runs layers without a graph, and would cut states below the last from theirs.
        kwargs = {**(activation_checkpointing_kwargs or {}), "use_reentrant": False}
        # The older name is the only one of transformers before 5.23.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable(kwargs, **others)
        self.recomputing = True

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """The older name of `activation_checkpointing_enable`."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **others)
