"""Steps of a demonstration: each is done once and recorded, so that a killed demonstration resumes."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.locks import FolderLock

log = logging.getLogger(__name__)
_RECORDS = ".starbucks-demo"


class Steps:
    """Named steps in a fixed order, which write into one folder.

    A step's record is written last, so a killed step runs again. All steps run again when `inputs` change; all later
    steps run again when one does. `seconds` holds the duration of each step when it ran.
    """

    def __init__(self, folder: Path, outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Any]) -> None:
        self.folder, self.outputs = folder, outputs
        self.seconds: dict[str, float] = {}
        wanted, path = json.loads(json.dumps(inputs)), folder / _RECORDS / "inputs.json"
        if _read(path) != wanted:
            self._forget(list(outputs))
            write_json(path, wanted)

    @classmethod
    @contextlib.contextmanager
    def open(cls, folder: Path, outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Any]) -> Iterator[Steps]:
        """Lock a folder that is new, empty or an earlier demonstration's, and yield its steps.

        Args:
            folder: the folder, made if it is missing.
            outputs: by step, the files and folders that it writes, relative to `folder`.
            inputs: everything that results depend on, JSON-ready.

        Raises:
            UserError: `folder` holds something else, or another process is writing it.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, a folder is needed", "name another --output")
        records = folder / _RECORDS
        if folder.exists() and not records.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir()):
            raise UserError(f"{folder} holds something else than a demonstration", "name another --output")
        records.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield cls(folder, outputs, inputs)
        finally:
            lock.release()

    def run(self, name: str, title: str, work: Callable[[], dict[str, Any]], resumes: bool = False) -> dict[str, Any]:
        """Return the figures that an earlier run of the step recorded, else those of `work`.

        What a killed step left is removed before `work`, unless `work` itself `resumes` from it.
        """
        log.info("\n%s", title)
        path, names = self._record(name), list(self.outputs)
        record = _read(path)
        if record is None or not all((self.folder / output).exists() for output in self.outputs[name]):
            self._forget(names[names.index(name) + resumes :])
            path.unlink(missing_ok=True)
            began = time.monotonic()
            record = {"figures": json.loads(json.dumps(work())), "seconds": round(time.monotonic() - began, 1)}
            write_json(path, record)
        else:
            log.info("kept from an earlier run, which took %.0f s", record["seconds"])
        self.seconds[name] = record["seconds"]
        return record["figures"]

    def _record(self, name: str) -> Path:
        return self.folder / _RECORDS / f"{name}.json"

    def _forget(self, names: Sequence[str]) -> None:
        """Remove records, the last first, then outputs: a kill in between must leave no record without its outputs."""
        for name in reversed(names):
            self._record(name).unlink(missing_ok=True)
        for path in (self.folder / output for name in names for output in self.outputs[name]):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
