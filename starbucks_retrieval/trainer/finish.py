"""The end of a training run: weights, record and card, each written whatever becomes of the others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.trainer.trainer import PartsTrainer

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
