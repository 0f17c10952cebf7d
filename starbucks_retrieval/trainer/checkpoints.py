"""What lies in the output folder of a run: whole checkpoints, and the configuration that they were made with."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.locks import LOCK, FolderLock
from starbucks_retrieval.trainer.distributed import first_process

log = logging.getLogger(__name__)

CACHE = "data-cache-"
_RUN = "run.json"
_ABSENT = object()


@contextlib.contextmanager
def locked_output_dir(output: Path, resume: Any, overwrite: bool) -> Iterator[str | None]:
    """Hold the output folder for as long as a run lasts; the first process does so for all. Gives what to resume from.

    Raises UserError where the folder holds something else, or another run writes it.
    """
    locks: list[FolderLock] = []

    def take() -> str | None:
        if output.exists() and not output.is_dir():
            raise UserError(f"{output} is a file", "name a folder with --output_dir")
        output.mkdir(parents=True, exist_ok=True)
        locks.append(FolderLock(output))
        return prepare_output_dir(output, resume, overwrite)

    try:
        yield first_process(take)
    finally:
        for lock in locks:
            lock.release()


def prepare_output_dir(output: Path, resume: Any, overwrite: bool) -> str | None:
    """What to resume from; None starts from the beginning. Raises UserError where a folder is not ours to write."""
    if isinstance(resume, str) and resume.lower() in ("true", "false"):
        resume = resume.lower() == "true"
    checkpoints = whole_checkpoints(output)
    if isinstance(resume, str) and Path(resume).resolve() not in [path.resolve() for path in checkpoints]:
        names = ", ".join(path.name for path in checkpoints) or "none"
        raise UserError(f"{resume} is no whole checkpoint of this run", f"whole ones in {output}: {names}")
    if resume is True and not checkpoints:
        log.info("no checkpoint in %s yet: starting from the beginning", output)
    foreign = [path for path in output.iterdir() if not path.name.startswith((CACHE, _RUN, LOCK))]
    if foreign and not resume and not overwrite:
        raise UserError(
            f"{output} is not empty",
            "continue with --resume_from_checkpoint true, start over with --overwrite_output_dir, or name another folder",
        )
    if resume is True:
        return str(checkpoints[-1]) if checkpoints else None
    return resume or None


def check_resume_config(output: Path, configuration: dict[str, Any], resumed: bool, override: bool) -> None:
    """Record a run's configuration, or raise UserError where a resumed run's differs from the recorded one."""
    path = output / _RUN
    configuration = json.loads(json.dumps(configuration))
    if resumed and path.is_file() and not override:
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [
            f"{name} {configuration.get(name)} (was {before.get(name)})"
            for name in sorted({*before, *configuration})
            if before.get(name, _ABSENT) != configuration.get(name, _ABSENT)
        ]
        if differing:
            raise UserError(
                f"the checkpoint was made with another configuration: {'; '.join(differing)}",
                "give the same flags, or --override to go on with the new ones",
            )
    write_json(path, configuration)


def whole_checkpoints(output: Path) -> list[Path]:
    """Checkpoints in the order of their steps, without one that a kill left half-written: the trainer's state is last."""
    found = []
    for path in output.glob("checkpoint-*/trainer_state.json"):
        with contextlib.suppress(ValueError):
            found.append((json.loads(path.read_text())["global_step"], path.parent))
    return [path for _, path in sorted(found)]
