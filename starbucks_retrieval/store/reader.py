"""Reading a store: memory-mapped, in blocks or by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import places
from starbucks_retrieval.store.cache import local_file
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.manifest import read_manifest
from starbucks_retrieval.store.places import Where
from starbucks_retrieval.store.shards import FileRecord, ShardRecord, load_shard
from starbucks_retrieval.store.spec import StoreSpec, job_difference


@dataclass(frozen=True)
class _Shard:
    """A shard in its folder; `start` and `stop` count from the first row of the store that reads it."""

    folder: Path
    record: ShardRecord
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.record.rows

    # Mapped anew at each use: a store of a thousand shards must not hold two thousand open files, and pages that
    # nobody maps any more are not counted as ours.
    def vectors(self) -> np.ndarray:
        return self._map(self.record.vectors)

    def ids(self) -> np.ndarray:
        return self._map(self.record.ids)

    def _map(self, file: FileRecord) -> np.ndarray:
        path = local_file(self.folder / file.name, file.bytes, file.blake2b)
        return np.load(path, mmap_mode="r", allow_pickle=False)


class EmbeddingStore:
    """A finished store, or several parts of one corpus read as one. Rows count from 0 in corpus order.

    Attributes: `spec`, `count` (rows), `first_row` (the corpus row of row 0: not 0 for a part opened alone),
    `largest_norm` (no vector is longer).
    """

    def __init__(self, spec: StoreSpec, shards: list[_Shard]) -> None:
        self.spec = spec
        self.first_row = spec.first_row
        self.count = shards[-1].stop
        self.largest_norm = max(shard.record.largest_norm for shard in shards)
        self._shards = shards
        self._starts = np.array([shard.start for shard in shards])

    @property
    def dtype(self) -> np.dtype:
        """The type of the stored vectors."""
        return np.dtype(self.spec.store_dtype)

    @property
    def folders(self) -> list[Path]:
        """The folders that are read, in the order of their rows."""
        return list(dict.fromkeys(shard.folder for shard in self._shards))

    @classmethod
    def open(cls, folder: Where) -> EmbeddingStore:
        """Open a finished store. Lengths of files are checked here; `verify` checks their content.

        Arrays at a URL are fetched, checked and kept in a local cache when they are first read. Raises UserError for no store, an unfinished one, a missing or damaged shard.
        """
        folder = places.place(folder)
        manifest = read_manifest(folder)
        spec = manifest.spec
        if not manifest.complete:
            there = sum(load_shard(folder, shard) is not None for shard in range(spec.shards))
            raise UserError(
                f"{folder} is incomplete: {there} of {spec.shards} shards are there",
                "run the same encode command again; it goes on where it stopped",
            )
        expected = [(shard, *spec.shard_rows(shard)) for shard in range(spec.shards)]
        if [(r.shard, r.start, r.start + r.rows) for r in manifest.shards] != expected:
            raise UserError(f"{folder / MANIFEST} is damaged", "delete the folder and encode again")
        lengths = places.entries(folder)
        for record in manifest.shards:
            _refuse(record.problem(folder, lengths, checksums=False))
        return cls(spec, [_Shard(folder, record, record.start) for record in manifest.shards])

    @classmethod
    def join(cls, stores: Iterable[EmbeddingStore]) -> EmbeddingStore:
        """All parts of one job as one store. Raises UserError when parts differ, repeat or are missing."""
        parts = sorted(stores, key=lambda store: store.spec.part)
        first = parts[0]
        for store in parts[1:]:
            if difference := job_difference(first.spec, store.spec, ignore=("part",)):
                raise UserError(
                    f"{first._shards[0].folder} and {store._shards[0].folder} are no parts of one store: {difference}",
                    "name the folders of one encoding job",
                )
        have = [store.spec.part for store in parts]
        if have != list(range(first.spec.parts)):
            missing = sorted(set(range(first.spec.parts)) - set(have))
            what = f"parts {missing} of {first.spec.parts} are missing" if missing else f"a part comes twice: {have}"
            raise UserError(what, "encode every --dataset_shard_index, and name each part once")
        shards = [
            dataclasses.replace(shard, start=store.first_row + shard.start)
            for store in parts
            for shard in store._shards
        ]
        return cls(dataclasses.replace(first.spec, parts=1, part=0), shards)

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """All vectors in order: (first row, [rows, dim]), each block of `max_rows` rows, the last one shorter.

        Small shards are merged and large ones split. `dtype` defaults to the stored one. An array is good
        until the next one is asked for.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}")
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        buffer: np.ndarray | None = None
        for start in range(0, self.count, max_rows):
            stop = min(start + max_rows, self.count)
            pieces = list(self._pieces(start, stop))
            if len(pieces) == 1 and wanted == self.dtype:
                shard, low, high = pieces[0]
                yield start, np.asarray(shard.vectors()[low:high])
                continue
            if buffer is None:
                buffer = np.empty((min(max_rows, self.count), self.spec.size.dim), wanted)
            filled = 0
            for shard, low, high in pieces:
                buffer[filled : filled + high - low] = shard.vectors()[low:high]
                filled += high - low
            yield start, buffer[:filled]

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """Ids and vectors [stop - start, dim] of the rows [start, stop), in the stored type."""
        pieces = list(self._pieces(start, stop))
        ids = [docid.decode() for shard, low, high in pieces for docid in shard.ids()[low:high].tolist()]
        vectors = [shard.vectors()[low:high] for shard, low, high in pieces]
        return ids, vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Vectors of the given rows, in their order: [len(rows), dim], in the stored type."""
        rows = self._checked(rows)
        order = np.argsort(rows, kind="stable")
        gathered = np.empty((len(rows), self.spec.size.dim), self.dtype)
        for shard, positions, local in self._by_shard(rows, order):
            gathered[positions] = shard.vectors()[local]
        return gathered

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """Ids of the given rows, in their order, as UTF-8; they sort as trec_eval sorts them."""
        rows = self._checked(rows)
        order = np.argsort(rows, kind="stable")
        gathered = np.empty(len(rows), object)
        for shard, positions, local in self._by_shard(rows, order):
            gathered[positions] = shard.ids()[local].tolist()
        return gathered.tolist()

    def ids(self, rows: np.ndarray) -> list[str]:
        """Ids of the given rows, in their order."""
        return [docid.decode() for docid in self.id_bytes(rows)]

    def verify(self) -> None:
        """Read every file and compare its checksum. Raises UserError naming the first damaged file."""
        lengths = {folder: places.entries(folder) for folder in self.folders}
        for shard in self._shards:
            _refuse(shard.record.problem(shard.folder, lengths[shard.folder]))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[_Shard, int, int]]:
        """The shards that hold rows [start, stop), each with its own first and last row."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for shard in self._shards[first:]:
            if shard.start >= stop:
                return
            yield shard, max(start, shard.start) - shard.start, min(stop, shard.stop) - shard.start

    def _by_shard(self, rows: np.ndarray, order: np.ndarray) -> Iterator[tuple[_Shard, np.ndarray, np.ndarray]]:
        """For each shard that is needed: positions in `rows`, and rows of the shard, ascending."""
        ascending = rows[order]
        bounds = np.searchsorted(ascending, np.append(self._starts, self.count))
        for index in np.flatnonzero(np.diff(bounds)):
            shard = self._shards[index]
            low, high = bounds[index], bounds[index + 1]
            yield shard, order[low:high], ascending[low:high] - shard.start

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        # A negative row would quietly read from the end.
        if len(rows) and (rows.min() < 0 or rows.max() >= self.count):
            raise IndexError(f"rows lie from 0 to {self.count - 1}")
        return rows


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise UserError(problem, "run the same encode command again; it writes what is damaged or missing")
