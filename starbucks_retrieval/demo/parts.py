"""The parts of a demonstration folder: done once, kept, and done again when what they were made from changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.provenance import write_json

log = logging.getLogger(__name__)
_MARKER = ".starbucks-demo"


@dataclass(frozen=True)
class Part:
    """A finished part: its figures, the seconds it took when it was made, and a key for what is built on it."""

    figures: dict[str, Any]
    seconds: float
    key: str
    kept: bool


class Parts:
    """Runs named parts inside one folder. A part's record is written last, so a kill leaves it to be done again.

    The record holds the part's inputs, among them the keys of the parts it is built on: a part is kept while its
    inputs and outputs are the same, so doing one again does all that follow from it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / _MARKER

    @classmethod
    @contextlib.contextmanager
    def open(cls, folder: Path) -> Iterator[Parts]:
        """The parts of a folder that is new, empty or made by an earlier demonstration, locked against another one.

        Raises UserError for a folder that holds something else.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, a folder is needed", "name another --output")
        parts = cls(folder)
        if folder.exists() and not parts.records.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir()):
            raise UserError(f"{folder} holds something else than a demonstration", "name another --output")
        parts.records.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield parts
        finally:
            lock.release()

    def run(
        self,
        name: str,
        inputs: dict[str, Any],
        outputs: Sequence[str],
        work: Callable[[], dict[str, Any]],
        resumes: bool = False,
    ) -> Part:
        """The part as an earlier run left it, else the result of `work`.

        `outputs` are the files and folders that it writes, relative to this folder. They are removed before the work
        begins, unless it `resumes` what a killed run of the same inputs left.
        """
        inputs = json.loads(json.dumps(inputs))
        path = self.records / f"{name}.json"
        record = _read(path)
        same = record is not None and record.get("inputs") == inputs
        if record and same and record.get("done") and all((self.folder / output).exists() for output in outputs):
            log.info("kept from an earlier run, which took %.0f s", record["seconds"])
            return Part(record["figures"], record["seconds"], _key(record), True)
        if not (same and resumes):
            path.unlink(missing_ok=True)  # before the outputs: a kill in between must not leave a record without them
            for output in outputs:
                _remove(self.folder / output)
        write_json(path, {"inputs": inputs, "done": False})
        began = time.monotonic()
        figures = json.loads(json.dumps(work()))
        record = {"inputs": inputs, "done": True, "figures": figures, "seconds": round(time.monotonic() - began, 1)}
        write_json(path, record)
        return Part(figures, record["seconds"], _key(record), False)


def _key(record: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
