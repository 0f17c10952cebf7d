"""Training code that `train` and `pretrain` share.

This file has the output folder of a run: its lock, its complete checkpoints and their configuration. `settings` has the
flags of transformers, `trainer` the training loop, and `distributed` the work of several processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.leftovers import temporaries
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.parsing import Count, Finite, Length, read_json
from starbucks_retrieval.trainer.distributed import first_process

if TYPE_CHECKING:
    from transformers import TrainingArguments

log = logging.getLogger(__name__)

# transformers uploads a checkpoint with the output folder around it, but no file whose name begins with _.
CACHE = "_data-cache-"
LOCK = "_lock"
START = "_start"  # folder with the projections that a run started from
_OLD_NAMES = ("data-cache-", ".lock")  # of version 0.1
NOT_UPLOADED = ("checkpoint-*", "_*", *(f"{name}*" for name in _OLD_NAMES))
_RUN = "run.json"
STATE = "trainer_state.json"  # of a checkpoint, by transformers; its last file
# Checkpoints are this many steps apart by default, and not longer than this in a slow run.
SAVE_STEPS = 500
SAVE_SECONDS = 900.0
_ABSENT = object()


@contextlib.contextmanager
def locked_output_dir(settings: TrainingArguments, overwrite: bool) -> Iterator[str | None]:
    """Lock the output folder for the duration of a run, in the first process for all of them.

    Args:
        settings: They name the folder, which is created if it does not exist, and the checkpoint to resume from.
        overwrite: Accept a folder that is not empty.

    Yields:
        The checkpoint to resume from, or None to start from the beginning.

    Raises:
        UserError: The folder holds other files, or another run writes it.
    """
    locks: list[FolderLock] = []
    output = Path(str(settings.output_dir))

    def take() -> str | None:
        if output.exists() and not output.is_dir():
            raise UserError(f"{output} is a file", "name a folder with --output_dir")
        output.mkdir(parents=True, exist_ok=True)
        locks.append(FolderLock(output, LOCK))
        return prepare_output_dir(output, settings.resume_from_checkpoint, overwrite)

    try:
        yield first_process(take)
    finally:
        for lock in locks:
            lock.release()


def prepare_output_dir(output: Path, resume: Any, overwrite: bool) -> str | None:
    """Return the checkpoint to resume from, or None to start from the beginning.

    Args:
        output: The output folder; it exists. Temporary files that a killed run left there are removed.
        resume: A checkpoint, True for the newest complete one, or False or None for none; also as text.
        overwrite: Accept a folder that is not empty.

    Raises:
        UserError: `resume` names no complete checkpoint, or the folder is not empty and may not be overwritten.
    """
    if isinstance(resume, str) and resume.lower() in ("true", "false"):
        resume = resume.lower() == "true"
    checkpoints = complete_checkpoints(output)
    if isinstance(resume, str) and Path(resume).resolve() not in [path.resolve() for path in checkpoints]:
        names = ", ".join(path.name for path in checkpoints) or "none"
        raise UserError(f"{resume} is not a complete checkpoint of this run", f"complete ones in {output}: {names}")
    if resume is True and not checkpoints:
        log.info("no checkpoint in %s yet: starting from the beginning", output)
    for left in temporaries(output / _RUN):  # by a run that was killed; the lock keeps others out
        left.unlink(missing_ok=True)
    ours = (CACHE, LOCK, START, _RUN, *_OLD_NAMES)
    if any(not path.name.startswith(ours) for path in output.iterdir()) and not resume and not overwrite:
        raise UserError(
            f"{output} is not empty",
            "continue with --resume_from_checkpoint true, start over with --overwrite_output_dir, or name another folder",
        )
    if resume is True:
        return str(checkpoints[-1]) if checkpoints else None
    return resume or None


def check_resume_config(output: Path, configuration: dict[str, Any], resumed: bool, override: bool) -> None:
    """Record the configuration of a run, and compare that of a resumed run with the recorded one.

    Args:
        output: The output folder.
        configuration: JSON-ready values by name, for everything that must not change when a run is resumed.
        resumed: Whether the run is resumed.
        override: Accept another configuration.

    Raises:
        UserError: The configurations differ; the message names every difference.
    """
    path = output / _RUN
    configuration = json.loads(json.dumps(configuration))
    if resumed and path.is_file() and not override:
        before = read_json(path, hint="restore the file, or --override to continue without it")
        differing = [
            f"{name} {configuration.get(name)} (was {before.get(name)})"
            for name in sorted({*before, *configuration})
            if before.get(name, _ABSENT) != configuration.get(name, _ABSENT)
        ]
        if differing:
            raise UserError(
                f"the checkpoint was made with another configuration: {'; '.join(differing)}",
                "use the same flags, or --override to continue with the new ones",
            )
    write_json(path, configuration)


@dataclass(frozen=True)
class _TrainerState:
    """trainer_state.json of transformers, as far as it counts."""

    global_step: Count
    max_steps: Count = 0
    logging_steps: Annotated[Finite, Gt(0)] = 1  # transformers writes 1.0 for a flag of 1
    eval_steps: Length = 0
    save_steps: Length = 0
    epoch: Finite | None = None
    num_train_epochs: int = 0  # sys.maxsize for a stream, as in pretrain
    train_batch_size: Count | None = None
    num_input_tokens_seen: Count = 0
    total_flos: Finite = 0
    log_history: list[dict[str, Any]] | None = None
    best_metric: float | None = None
    best_global_step: Count | None = None
    best_model_checkpoint: str | None = None
    stateful_callbacks: dict[str, dict[str, Any] | list[dict[str, Any]]] | None = None


def check_state(checkpoint: Path) -> int:
    """Return the step of a checkpoint.

    Args:
        checkpoint: The folder.

    Raises:
        UserError: The trainer's state cannot be read, or has values that transformers would fail on.
    """
    hint = "delete this checkpoint, and resume from an earlier one"
    return read_json(checkpoint / STATE, _TrainerState, hint, problem="is damaged").global_step


def complete_checkpoints(output: Path) -> list[Path]:
    """Return the complete checkpoints in the order of their steps.

    The trainer's state is the last file of a checkpoint, so one without it was interrupted.

    Args:
        output: The output folder of a run.

    Returns:
        Their folders, the newest last; [] if there are none.
    """
    checkpoints = []
    for path in output.glob(f"checkpoint-*/{STATE}"):
        try:
            checkpoints.append((check_state(path.parent), path.parent))
        except UserError as error:
            log.warning("%s; it is passed over", error.what)
    return [path for _, path in sorted(checkpoints)]
