"""transformers' Trainer with a UserError for each file of a checkpoint that cannot be read."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_callback import TrainerState

from starbucks_retrieval.models.damage import explain_damage
from starbucks_retrieval.trainer import STATE, check_state


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
