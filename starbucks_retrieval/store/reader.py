"""Reading a store: memory-mapped, in blocks or by row."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.cache import local_file
from starbucks_retrieval.store.float16 import refuse_endless, to_float32
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.manifest import read_manifest
from starbucks_retrieval.store.shards import FileRecord, ShardRecord, load_shard
from starbucks_retrieval.store.spec import StoreSpec, job_difference
from starbucks_retrieval.store.storage import PathLike

_KEPT = 256  # open files that a store may have at most


class _Shard:
    """A shard in its folder; `start` and `stop` count from the first row of the store that reads it."""

    def __init__(self, folder: Path, record: ShardRecord, start: int) -> None:
        self.folder, self.record, self.start = folder, record, start
        self.keep = False
        self._headers: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
        self._vectors: np.ndarray | None = None
        self._sound = 0  # rows from the first that were found finite

    @property
    def stop(self) -> int:
        return self.start + self.record.rows

    # Mapped anew at each use, unless told otherwise: a store of a thousand shards must not hold two thousand open
    # files, and pages that nobody maps any more are not counted as ours.
    def vectors(self) -> np.ndarray:
        vectors = self._vectors
        if vectors is None:
            vectors = self._map(self.record.vectors)
            if self.keep:
                self._vectors = vectors
        return vectors

    def ids(self) -> np.ndarray:
        return self._map(self.record.ids)

    def check(self, some: np.ndarray, low: int) -> None:
        """Refuse rows from `low` on with NaN or infinity, which scores would hide; in order, each is seen once."""
        if low + len(some) > self._sound:
            refuse_endless(some)
            if low <= self._sound:
                self._sound = low + len(some)

    def _map(self, file: FileRecord) -> np.ndarray:
        path = local_file(self.folder / file.name, file.bytes, file.blake2b)
        if file.name not in self._headers:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            self._headers[file.name] = array.offset, array.shape, array.dtype
            return array
        # What np.load does, without reading the header again: a tenth of its time.
        offset, shape, dtype = self._headers[file.name]
        with open(path, "rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(shape, dtype, mapped, offset)


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
        self._held: np.ndarray | None = None

    @property
    def dtype(self) -> np.dtype:
        """The type of the stored vectors."""
        return np.dtype(self.spec.store_dtype)

    @property
    def folders(self) -> list[Path]:
        """The folders that are read, in the order of their rows."""
        return list(dict.fromkeys(shard.folder for shard in self._shards))

    @classmethod
    def open(cls, folder: PathLike) -> EmbeddingStore:
        """Open a finished store. Lengths of files are checked here; `verify` checks their content.

        Arrays at a URL are fetched, checked and kept in a local cache when they are first read. Raises UserError for no store, an unfinished one, a missing or damaged shard.
        """
        folder = storage.as_path(folder)
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
        lengths = storage.entries(folder)
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
            _Shard(shard.folder, shard.record, store.first_row + shard.start)
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
        if self._held is not None and wanted == np.float32:
            for start in range(0, self.count, max_rows):
                yield start, self._held[start : start + max_rows]
            return
        buffer: np.ndarray | None = None
        for start in range(0, self.count, max_rows):
            stop = min(start + max_rows, self.count)
            pieces = list(self._pieces(start, stop))
            if len(pieces) == 1 and wanted == self.dtype:
                shard, low, high = pieces[0]
                some = np.asarray(shard.vectors()[low:high])
                shard.check(some, low)
                yield start, some
                continue
            if buffer is None:
                buffer = np.empty((min(max_rows, self.count), self.spec.size.dim), wanted)
            filled = 0
            for shard, low, high in pieces:
                some = shard.vectors()[low:high]
                if wanted == np.float32:
                    to_float32(some, buffer[filled : filled + high - low])
                else:
                    shard.check(some, low)
                    buffer[filled : filled + high - low] = some
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
        order, ascending = self._ascending(rows)
        gathered = np.empty((len(ascending), self.spec.size.dim), self.dtype)
        for shard, low, high in self._by_shard(ascending):
            # Any other mode than clip would fill a copy first; rows were checked.
            np.take(shard.vectors(), ascending[low:high] - shard.start, axis=0, out=gathered[low:high], mode="clip")
        if order is None:
            return gathered
        ordered = np.empty_like(gathered)
        ordered[order] = gathered
        return ordered

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """Ids of the given rows, in their order, as UTF-8; they sort as trec_eval sorts them."""
        order, ascending = self._ascending(rows)
        gathered = np.empty(len(ascending), object)
        for shard, low, high in self._by_shard(ascending):
            place = slice(low, high) if order is None else order[low:high]
            gathered[place] = shard.ids()[ascending[low:high] - shard.start].tolist()
        return gathered.tolist()

    def ids(self, rows: np.ndarray) -> list[str]:
        """Ids of the given rows, in their order."""
        return [docid.decode() for docid in self.id_bytes(rows)]

    def keep_mapped(self) -> None:
        """Keep the vectors of the first shards mapped from their first use on: for who reads rows again and again.

        That spares opening files and faulting pages, most of the time of reading few rows of many shards. The pages
        that were read then count as this process' memory, though the system may take them back.
        """
        for shard in self._shards[:_KEPT]:
            shard.keep = True

    @property
    def mapped(self) -> bool:
        """Whether all of its vectors stay mapped."""
        return all(shard.keep for shard in self._shards)

    def hold(self, max_bytes: int) -> None:
        """Keep all vectors in memory in single precision from now on, if they fit: for one search after another."""
        if self._held is None and 4 * self.count * self.spec.size.dim <= max_bytes:
            [(_, held)] = self.blocks(self.count, np.float32)
            held.flags.writeable = False
            self._held = held

    def verify(self) -> None:
        """Read every file and compare its checksum. Raises UserError naming the first damaged file."""
        lengths = {folder: storage.entries(folder) for folder in self.folders}
        for shard in self._shards:
            _refuse(shard.record.problem(shard.folder, lengths[shard.folder]))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[_Shard, int, int]]:
        """The shards that hold rows [start, stop), each with its own first and last row."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for shard in self._shards[first:]:
            if shard.start >= stop:
                return
            yield shard, max(start, shard.start) - shard.start, min(stop, shard.stop) - shard.start

    def _by_shard(self, ascending: np.ndarray) -> Iterator[tuple[_Shard, int, int]]:
        """The shards that hold some of these rows, and where those of each begin and end."""
        bounds = np.searchsorted(ascending, np.append(self._starts, self.count))
        for index in np.flatnonzero(np.diff(bounds)):
            yield self._shards[index], int(bounds[index]), int(bounds[index + 1])

    def _ascending(self, rows: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """The rows, ascending, and the place of each in `rows`; None where they are ascending already."""
        rows = self._checked(rows)
        if (rows[1:] >= rows[:-1]).all():
            return None, rows
        order = np.argsort(rows, kind="stable")
        return order, rows[order]

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        # A negative row would quietly read from the end.
        if len(rows) and (rows.min() < 0 or rows.max() >= self.count):
            raise IndexError(f"rows lie from 0 to {self.count - 1}")
        return rows


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise UserError(problem, "run the same encode command again; it writes what is damaged or missing")
