"""Passages of a corpus by their row, on disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Passage, Records
from starbucks_retrieval.errors import UserError


class PassageFile:
    """Some passages of a corpus in a nameless temporary file, which ends with the process. Memory: 16 bytes each."""

    def __init__(self, corpus: Records[Passage], rows: np.ndarray, count: int, folder: Path) -> None:
        """Copy `rows` (distinct, ascending) of a corpus of `count` passages into a file under `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._rows = rows
        self._starts = np.zeros(len(rows) + 1, np.int64)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        wanted = np.zeros(count, bool)
        wanted[rows] = True
        place = 0
        for row, passage in enumerate(progress(corpus, count, "passages", "reading texts")):
            if row < count and wanted[row]:
                line = json.dumps([passage.docid, passage.title, passage.text]).encode()
                self._file.write(line)
                self._starts[place + 1] = self._starts[place] + len(line)
                place += 1
        if place < len(rows):
            raise UserError(f"{corpus.name} has become shorter while it was read", "run the command again")

    def __getitem__(self, row: int) -> Passage:
        place = int(np.searchsorted(self._rows, row))
        start, stop = self._starts[place : place + 2].tolist()
        self._file.seek(start)
        return Passage(*json.loads(self._file.read(stop - start)))

    def __enter__(self) -> PassageFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
