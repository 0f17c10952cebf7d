"""Named steps that write into one folder, of which a killed command resumes the unfinished ones."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.provenance import digest_matches, with_digest

log = logging.getLogger(__name__)
_RECORD = ("figures", "seconds")


class Steps:
    """Named steps in a fixed order, which write into one folder.

    A step's record is written last, so a killed step runs again. All steps run again when `inputs` change; all later
    steps run again when one does.

    Attributes:
        folder: The folder.
        outputs: By step, the files and folders that it writes, relative to `folder`.
        records: The folder of the steps' records.
        seconds: The duration of each step when it ran.
        kept: The steps that an earlier call ran.
    """

    def __init__(
        self, folder: Path, outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Any], records: Path
    ) -> None:
        self.folder, self.outputs, self.records = folder, outputs, records
        self.seconds: dict[str, float] = {}
        self.kept: set[str] = set()
        wanted, path = json.loads(json.dumps(inputs)), records / "inputs.json"
        found = _read(path)
        if found != wanted:
            if found is not None:
                log.info("%s was made from other input or with other flags: starting over", folder)
            self._forget(list(outputs))
            write_json(path, wanted)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, folder: Path, outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Any], stage: str
    ) -> Iterator[Steps]:
        """Lock a folder that is new, empty or an earlier call's, and yield its steps.

        Args:
            folder: The folder, made if it is missing.
            outputs: By step, the files and folders that it writes, relative to `folder`.
            inputs: Everything that results depend on, JSON-ready.
            stage: The command; each has its own records, and refuses the folder of another.

        Raises:
            UserError: `folder` holds something else, or another process is writing it.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, a folder is needed", "name another --output")
        records = folder / f".starbucks-{stage}"
        if folder.exists() and not records.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir()):
            raise UserError(
                f"{folder} holds something else than the output of starbucks {stage}", "name another --output"
            )
        records.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield cls(folder, outputs, inputs, records)
        finally:
            lock.release()

    def run(self, name: str, title: str, work: Callable[[], dict[str, Any]], resumes: bool = False) -> dict[str, Any]:
        """Return the figures that an earlier run of the step recorded, else those of `work`.

        Args:
            name: The step, one of `outputs`.
            title: A line for the log.
            work: Does the step and returns its JSON-ready figures.
            resumes: Keep the output of a killed run, from which `work` resumes; otherwise it is removed before `work`.
        """
        log.info("\n%s", title)
        path, names = self._record(name), list(self.outputs)
        record = _read(path, _RECORD)
        if record is None or not all((self.folder / output).exists() for output in self.outputs[name]):
            self._forget(names[names.index(name) + resumes :])
            path.unlink(missing_ok=True)
            began = time.monotonic()
            record = {"figures": json.loads(json.dumps(work())), "seconds": round(time.monotonic() - began, 1)}
            write_json(path, with_digest(record))
        else:
            log.info("kept from an earlier run, which took %.0f s", record["seconds"])
            self.kept.add(name)
        self.seconds[name] = record["seconds"]
        return record["figures"]

    def _record(self, name: str) -> Path:
        return self.records / f"{name}.json"

    def _forget(self, names: Sequence[str]) -> None:
        """Remove records, the last first, then outputs: a kill in between must leave no record without its outputs."""
        for name in reversed(names):
            self._record(name).unlink(missing_ok=True)
        for path in (self.folder / output for name in names for output in self.outputs[name]):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _read(path: Path, keys: Iterable[str] = ()) -> dict[str, Any] | None:
    """Return the content of a record, None where there is none that is as it was written."""
    try:
        found = read_json(path)
    except (OSError, UserError):
        return None
    return found if all(key in found for key in keys) and (not keys or digest_matches(found, set(keys))) else None
