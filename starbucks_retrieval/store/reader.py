"""Read a store, memory-mapped: in blocks, or by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.agreement import check_parts
from starbucks_retrieval.store.dtypes import to_float32
from starbucks_retrieval.store.layout import MANIFEST, read_manifest, shards_there
from starbucks_retrieval.store.shards import QuantisedArray, Shard, checked_rows
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.storage import PathLike

_HINT = "run the same encode command again; it writes what is damaged or missing"
_MAX_MAPPED = 256  # shards of a store that stay mapped at most


class EmbeddingStore:
    """A complete store, or several parts of one corpus read as one. Rows count from 0 in corpus order.

    Attributes:
        spec: The job that wrote it.
        count: The number of rows.
        first_row: The corpus row of row 0: not 0 for a part that is opened alone.
        largest_norm: No vector is longer.
    """

    def __init__(self, spec: StoreSpec, shards: list[Shard]) -> None:
        self.spec = spec
        self.first_row = spec.first_row
        self.count = shards[-1].stop
        self.largest_norm = max(shard.record.largest_norm for shard in shards)
        self._shards = shards
        self._starts = np.array([shard.start for shard in shards])
        self._held: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        model = f", model {self.spec.model_name!r}" if self.spec.model_name else ""
        folder = f", in {self.folders[0].parent if len(self.folders) > 1 else self.folders[0]}" if self.folders else ""
        return f"{type(self).__name__}({self.count} {self.spec.kind} at {self.spec.size}, {self.dtype}{model}{folder})"

    @property
    def dtype(self) -> np.dtype:
        """The type of the vectors as they are read; float32 of quantised ones."""
        return np.dtype(self.spec.store_dtype if self.spec.quantiser is None else np.float32)

    @property
    def block_dtype(self) -> np.dtype:
        """The type in which `blocks` has the least work to yield the exact numbers: the stored one, which is mapped."""
        return self.dtype

    @property
    def folders(self) -> list[Path]:
        """The folders of the store, in the order of their rows."""
        return list(dict.fromkeys(shard.folder for shard in self._shards))

    @classmethod
    def open(cls, folder: PathLike) -> EmbeddingStore:
        """Open one folder of a complete store.

        The lengths of files are checked. Of their content, each block is compared with its checksum when it is first
        read by this process, unless version 0.1 wrote the store; `verify` checks all of it. Arrays at a URL are copied
        into a local cache when they are first read.

        Args:
            folder: The folder of one size, local or a URL; `open_store` also takes the output of encode.

        Raises:
            UserError: The folder is not a store or not complete, or a shard is missing or damaged.
        """
        folder = storage.as_path(folder)
        manifest = read_manifest(folder)
        spec = manifest.spec
        if not manifest.complete:
            raise UserError(
                f"{folder} is incomplete: {len(shards_there(folder))} of {spec.shards} shards are there",
                "run the same encode command again; it resumes",
            )
        found = [(record.shard, record.start, record.start + record.rows) for record in manifest.shards]
        if found != [(shard, *spec.shard_rows(shard)) for shard in range(len(found))]:
            raise UserError(f"{folder / MANIFEST} is damaged", "delete the folder and encode again")
        lengths = storage.entries(folder)
        for record in manifest.shards:
            _check(record.problem(folder, lengths, checksums=False))
        if not manifest.has_checksums:
            _say_unchecked(folder)
        return cls(spec, [Shard(folder, r, r.start, spec) for r in manifest.shards])

    @classmethod
    def join(cls, stores: Iterable[EmbeddingStore]) -> EmbeddingStore:
        """Join all parts of one job.

        Args:
            stores: The parts, in any order.

        Raises:
            UserError: As of `check_parts`.
        """
        parts = sorted(stores, key=lambda store: store.spec.part)
        check_parts([(store.spec, store._shards[0].folder) for store in parts])
        shards = [shard.moved(store.first_row + shard.start) for store in parts for shard in store._shards]
        return cls(dataclasses.replace(parts[0].spec, parts=1, part=0), shards)

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all vectors in order, as pairs of first row and array [rows, dim].

        An array is valid until the next one is yielded.

        Args:
            max_rows: Rows of a block; the last one may have fewer. Small shards are joined and large ones split.
            dtype: The type of the arrays; by default the stored one.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}")
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        if self._held is not None and wanted == self._held.dtype:
            for start in range(0, self.count, max_rows):
                yield start, self._held[start : start + max_rows]
            return
        buffer: np.ndarray | None = None
        for start in range(0, self.count, max_rows):
            stop = min(start + max_rows, self.count)
            pieces = list(self._pieces(start, stop))
            if len(pieces) == 1 and wanted == self.dtype:
                shard, low, high = pieces[0]
                rows = shard.vectors.rows(low, high)
                shard.check_finite(rows, low)
                yield start, rows
                continue
            buffer = np.empty((min(max_rows, self.count), self.spec.size.dim), wanted) if buffer is None else buffer
            filled = 0
            for shard, low, high in pieces:
                for first, rows in shard.vectors.pieces(low, high):
                    if wanted == np.float32:
                        to_float32(rows, buffer[filled : filled + len(rows)], finite=shard.vectors.compared)
                    else:
                        shard.check_finite(rows, first)
                        buffer[filled : filled + len(rows)] = rows
                    filled += len(rows)
            yield start, buffer[:filled]

    def codes(self) -> Iterator[np.ndarray]:
        """Yield the stored codes of a quantised store, shard by shard: [rows, columns], mapped."""
        for array in (shard.vectors for shard in self._shards):
            assert isinstance(array, QuantisedArray)
            yield array.codes(0, array.shape[0])

    def ranges(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """Yield ranges [start, stop) of up to `max_rows` rows that cover the store and lie within shards."""
        for shard in self._shards:
            for start in range(shard.start, shard.stop, max_rows):
                yield start, min(start + max_rows, shard.stop)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the vectors of the rows [start, stop): [stop - start, dim] in the stored type, a view within a shard."""
        found = []
        for shard, low, high in self._pieces(start, stop):
            found.append(shard.vectors.rows(low, high))
            shard.check_finite(found[-1], low)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def block(self, start: int, stop: int) -> np.ndarray:
        """Return the vectors of the rows [start, stop) as `blocks` yields them, in `block_dtype`."""
        return self.rows(start, stop)

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """Return the ids and vectors [stop - start, dim] of the rows [start, stop), in the stored type (`dtype`)."""
        pieces = self._pieces(start, stop)
        ids = _decoded(docid for shard, low, high in pieces for docid in shard.ids.rows(low, high).tolist())
        return ids, self.rows(start, stop)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of the given rows, in their order: [len(rows), dim], in the stored type (`dtype`).

        Args:
            rows: Row numbers from 0, integers [n], in any order; a row may occur several times.

        Raises:
            IndexError: A row is negative, or not below `count`.
        """
        order, ascending = self._ascending(rows)
        gathered = np.empty((len(ascending), self.spec.size.dim), self.dtype)
        for shard, low, high in self._by_shard(ascending):
            shard.vectors.take(ascending[low:high] - shard.start, out=gathered[low:high])
        if order is not None:
            gathered[order] = gathered.copy()
        return gathered

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """Return the ids of the given rows, in their order, as UTF-8; they sort as in trec_eval."""
        order, ascending = self._ascending(rows)
        gathered = np.empty(len(ascending), object)
        for shard, low, high in self._by_shard(ascending):
            positions = slice(low, high) if order is None else order[low:high]
            gathered[positions] = shard.ids.take(ascending[low:high] - shard.start).tolist()
        return gathered.tolist()

    def ids(self, rows: np.ndarray) -> list[str]:
        """Return the ids of the given rows, in their order."""
        return _decoded(self.id_bytes(rows))

    def keep_mapped(self, max_bytes: int | None = None) -> None:
        """Keep the vectors of up to 256 shards mapped after their first use, which saves opening files and page faults.

        The pages count as memory of this process, though the system may reclaim them; no more than `max_bytes` are kept.
        """
        if max_bytes is None or sum(shard.vectors.file.bytes for shard in self._shards) <= max_bytes:
            for shard in self._shards[:_MAX_MAPPED]:
                shard.vectors.keep = True

    @property
    def mapped(self) -> bool:
        """Whether the vectors of all shards stay mapped."""
        return all(shard.vectors.keep for shard in self._shards)

    def skip_checksums(self) -> None:
        """Do not compare what is read from now on with its checksums."""
        for shard in self._shards:
            shard.vectors.checksum = shard.ids.checksum = False

    def hold(self, max_bytes: int, dtype: npt.DTypeLike = np.float32) -> None:
        """Keep all vectors in memory if they fit, for repeated searches.

        Args:
            max_bytes: The most memory to take for converted vectors.
            dtype: Their type; vectors that are stored in it are only kept mapped.
        """
        if self.dtype == dtype == np.float16:
            self.keep_mapped()
        else:
            self._load(max_bytes, np.dtype(dtype))

    def _load(self, max_bytes: int, dtype: np.dtype) -> None:
        if self._held is None and dtype.itemsize * self.count * self.spec.size.dim <= max_bytes:
            [(_, self._held)] = self.blocks(self.count, dtype)
            self._held.flags.writeable = False
            self.keep_mapped()  # exact scores read single rows

    def verify_unchecked(self) -> None:
        """Verify a store without checksums of blocks: copies would give damaged vectors new checksums."""
        if not all(blocks for shard in self._shards for blocks in shard.record.blocks.values()):
            self.verify()

    def verify(self) -> None:
        """Read every file and compare its checksum. Raises UserError naming the first damaged file."""
        lengths = {folder: storage.entries(folder) for folder in self.folders}
        for shard in self._shards:
            _check(shard.record.problem(shard.folder, lengths[shard.folder]))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """Yield the shards that hold rows [start, stop), each with the range of its own rows."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for shard in self._shards[first:]:
            if shard.start >= stop:
                return
            yield shard, max(start, shard.start) - shard.start, min(stop, shard.stop) - shard.start

    def _by_shard(self, ascending: np.ndarray) -> Iterator[tuple[Shard, int, int]]:
        """Yield the shards that hold some of these rows, each with the range of positions in `ascending`."""
        bounds = np.searchsorted(ascending, np.append(self._starts, self.count))
        for index in np.flatnonzero(np.diff(bounds)):
            yield self._shards[index], int(bounds[index]), int(bounds[index + 1])

    def _ascending(self, rows: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the rows, ascending, and the position of each in `rows`; None where they are ascending already."""
        rows = checked_rows(rows, self.count)
        if (rows[1:] >= rows[:-1]).all():
            return None, rows
        order = np.argsort(rows, kind="stable")
        return order, rows[order]


@cache
def _say_unchecked(folder: Path) -> None:
    """Log, once a folder, that what is read from it is not checked."""
    log.debug("%s has no checksums of blocks: only `starbucks store verify` notices damage to its vectors", folder)


def _decoded(ids: Iterable[bytes]) -> list[str]:
    try:
        return [docid.decode() for docid in ids]
    except UnicodeDecodeError:
        raise UserError("a stored id is not UTF-8: the store is damaged", _HINT) from None


def _check(problem: str | None) -> None:
    if problem is not None:
        raise UserError(problem, _HINT)
