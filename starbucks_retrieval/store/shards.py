"""One shard of a store, memory-mapped."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from starbucks_retrieval.store import layout
from starbucks_retrieval.store.layout import FileRecord, ShardRecord
from starbucks_retrieval.store.storage import local_file


class Shard:
    """A shard in its folder; `start` and `stop` count from the first row of the store that reads it."""

    def __init__(self, folder: Path, record: ShardRecord, start: int) -> None:
        self.folder, self.record, self.start = folder, record, start
        self.keep = False
        self._headers: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
        self._vectors: np.ndarray | None = None
        self._finite = 0  # rows from the first that are known to be finite

    @property
    def stop(self) -> int:
        return self.start + self.record.rows

    # Mapped anew at each use unless `keep` is set: a store of a thousand shards must not hold two thousand open files,
    # and pages that are no longer mapped do not count as memory of this process.
    def vectors(self) -> np.ndarray:
        vectors = self._map(self.record.vectors) if self._vectors is None else self._vectors
        if self.keep:
            self._vectors = vectors
        return vectors

    def ids(self) -> np.ndarray:
        return self._map(self.record.ids)

    def check(self, rows: np.ndarray, low: int) -> None:
        """Raise UserError if rows from `low` on have NaN or infinity; rows read in order are checked once."""
        if low + len(rows) > self._finite:
            layout.check_finite(rows)
            if low <= self._finite:
                self._finite = low + len(rows)

    def _map(self, file: FileRecord) -> np.ndarray:
        path = local_file(self.folder / file.name, file.bytes, file.blake2b)
        if file.name not in self._headers:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            self._headers[file.name] = array.offset, array.shape, array.dtype
            return array
        # As np.load, without reading the header again: a tenth of its time.
        offset, shape, dtype = self._headers[file.name]
        with open(path, "rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(shape, dtype, mapped, offset)
