"""The arrays of a shard, memory-mapped, and compared with their checksums where they are read first."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import checksums
from starbucks_retrieval.store.dtypes import Quantiser, check_finite, stored_form
from starbucks_retrieval.store.layout import FileRecord, ShardRecord
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.storage import is_remote, local_file

_PIECE = 2**20  # bytes that are checked and then copied from the processor's cache


@dataclass(frozen=True)
class _Mapping:
    array: np.ndarray
    content: memoryview
    checked: np.ndarray | None  # [blocks] bool; None: there are no checksums, or they are not wanted


class StoredArray:
    """One .npy file of a shard.

    It is mapped anew at each use unless `keep` is set: a store of a thousand shards must not hold two thousand open
    files, and pages that are no longer mapped do not count as memory of this process.

    Args:
        folder: The folder of the store.
        file: The name, length and checksums of the file.
        rows: Rows of the array.
        dim: Numbers of a row; None for ids.
        dtype: The type of the numbers; for ids, of any length, `S`.
    """

    def __init__(self, folder: Path, file: FileRecord, rows: int, dim: int | None, dtype: str) -> None:
        self.folder, self.file, self.dtype = folder, file, np.dtype(dtype)
        self.shape: tuple[int, ...] = (rows,) if dim is None else (rows, dim)
        self.keep = False
        self.checksum = True
        self._header: tuple[int, np.dtype] | None = None
        self._checksums: np.ndarray | None = None
        self._kept: _Mapping | None = None

    @property
    def compared(self) -> bool:
        """Whether what is read is compared with checksums."""
        return self.checksum and bool(self.file.blocks)

    def rows(self, low: int, high: int) -> np.ndarray:
        """Return the rows [low, high), mapped: a view that cannot be written to.

        Args:
            low: The first row, counted in the shard.
            high: The row after the last one.

        Returns:
            [high - low, dim] in the stored type; for ids, [high - low] UTF-8 bytes.

        Raises:
            UserError: The file has another length or header, or the rows do not match their checksums.
        """
        mapping = self._map()
        if mapping.checked is not None:
            offset, width = self._offset_and_width()
            blocks = checksums.blocks_of_range(offset + low * width, offset + high * width)
            self._check(mapping.content, mapping.checked, blocks)
        return mapping.array[low:high]

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows [low, high) as pairs of first row and rows.

        Pieces are so small that a caller who copies each finds it in the processor's cache, where it was checked.
        Rows that need no check are one piece.

        Args:
            low: The first row, counted in the shard.
            high: The row after the last one.

        Raises:
            UserError: As of `rows`, when the piece is reached.
        """
        mapping = self._map()
        offset, width = self._offset_and_width()
        blocks = checksums.blocks_of_range(offset + low * width, offset + high * width)
        if mapping.checked is None or mapping.checked[blocks].all():
            yield low, mapping.array[low:high]
            return
        step = max(1, _PIECE // width)
        for start in range(low, high, step):
            stop = min(start + step, high)
            blocks = checksums.blocks_of_range(offset + start * width, offset + stop * width)
            self._check(mapping.content, mapping.checked, blocks)
            yield start, mapping.array[start:stop]

    def take(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the given rows, in their order.

        Args:
            rows: Row numbers in the shard, integers [n]. They are not checked; callers have done so.
            out: An array of the same type to write into; None: a new one.

        Returns:
            `out`, or [n, dim] in the stored type; for ids, [n] UTF-8 bytes.

        Raises:
            UserError: As of `rows`.
        """
        # Any other mode than clip would fill a copy of `out` first; callers have checked the rows.
        return np.take(self.with_rows(rows), rows, axis=0, out=out, mode="clip")

    def with_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the whole array, mapped, with the given rows compared with their checksums; as `take` otherwise."""
        mapping = self._map()
        if mapping.checked is not None:
            offset, width = self._offset_and_width()
            blocks = checksums.blocks_of_rows(rows, offset, width, len(mapping.checked))
            self._check(mapping.content, mapping.checked, blocks)
        return mapping.array

    def _offset_and_width(self) -> tuple[int, int]:
        assert self._header is not None
        offset, dtype = self._header
        return offset, dtype.itemsize * (self.shape[1] if len(self.shape) > 1 else 1)

    def _map(self) -> _Mapping:
        if self._kept is not None:
            return self._kept
        path = local_file(self.folder / self.file.name, self.file.bytes, self.file.blake2b)
        with open(path, "rb") as handle:
            version = os.fstat(handle.fileno())
            if version.st_size != self.file.bytes or not version.st_size:
                raise self._damaged(f"has {version.st_size} bytes instead of {self.file.bytes}")
            content = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
            checked = None
            if self.compared:
                checked = checksums.checked_blocks(version, self.file.bytes, self.file.blake2b)
            if self._header is None:
                if checked is not None:
                    self._check(content, checked, np.array([0]))
                self._header = self._read_header(handle)
        offset, dtype = self._header
        mapping = _Mapping(np.ndarray(self.shape, dtype, content, offset), content, checked)
        if self.keep:
            self._kept = mapping
        return mapping

    def _read_header(self, handle: BinaryIO) -> tuple[int, np.dtype]:
        """Return the offset of the numbers and their type. Raises UserError unless they are as recorded."""
        try:
            np.lib.format.read_magic(handle)
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(handle)
        except Exception:  # numpy parses the header as Python, which fails in many ways
            raise self._damaged("has no header of numpy's format 1.0") from None
        offset = handle.tell()
        same_type = dtype.kind == "S" if self.dtype.kind == "S" else dtype == self.dtype
        if not same_type or fortran_order or shape != self.shape:
            raise self._damaged(f"holds {dtype} of shape {shape}, not {self.dtype} of shape {self.shape}")
        if offset + dtype.itemsize * int(np.prod(shape)) != self.file.bytes:
            raise self._damaged(f"is not as long as {shape} of {dtype}")
        return offset, dtype

    def _check(self, content: memoryview, checked: np.ndarray, blocks: np.ndarray) -> None:
        blocks = blocks[~checked[blocks]]
        if not len(blocks):
            return
        if self._checksums is None:
            self._checksums = checksums.parsed(self.file.blocks)
        damaged = checksums.damaged_block(content, self._checksums, blocks)
        if damaged is not None:
            start = damaged * checksums.BLOCK
            stop = min(start + checksums.BLOCK, self.file.bytes)
            raise self._damaged(f"is damaged: its bytes {start} to {stop} do not match their checksum")
        checked[blocks] = True

    def _damaged(self, problem: str) -> UserError:
        path = self.folder / self.file.name
        if is_remote(path):
            copy = local_file(path, self.file.bytes, self.file.blake2b)
            return UserError(f"{copy} {problem}", f"delete it; it is a copy of {path} and will be copied again")
        return UserError(
            f"{path} {problem}",
            "copy the store again, or run the command that wrote it again; it writes damaged files again",
        )


class QuantisedArray(StoredArray):
    """The vectors of a quantised shard, read as float32: `quantiser` turns the stored codes into them."""

    def __init__(self, folder: Path, file: FileRecord, rows: int, quantiser: Quantiser) -> None:
        super().__init__(folder, file, rows, *stored_form(quantiser.store_dtype, len(quantiser.scale)))
        self.quantiser = quantiser

    def codes(self, low: int, high: int) -> np.ndarray:
        """Return the stored codes of the rows [low, high), mapped; arguments and errors are those of `rows`.

        Returns:
            [high - low, dim] int8, or for binary [high - low, dim / 8 rounded up] uint8.
        """
        return super().rows(low, high)

    def rows(self, low: int, high: int) -> np.ndarray:
        """As StoredArray.rows, but a copy."""
        return self.quantiser.decode(self.codes(low, high))

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, np.ndarray]]:
        """As StoredArray.pieces."""
        step = max(1, _PIECE // (4 * len(self.quantiser.scale)))
        for start in range(low, high, step):
            yield start, self.rows(start, min(start + step, high))

    def take(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """As StoredArray.take."""
        return self.quantiser.decode(super().take(rows), out)


class Shard:
    """A shard in its folder.

    Args:
        folder: The folder of the store.
        record: Its rows and files, from the manifest.
        start: Its first row, counted from the first row of the store that reads it.
        spec: The job of the store.

    Attributes:
        vectors: The array of its vectors, decoded where they are quantised.
        ids: The array of its ids.
    """

    def __init__(self, folder: Path, record: ShardRecord, start: int, spec: StoreSpec) -> None:
        self.folder, self.record, self.start, self.spec = folder, record, start, spec
        self.vectors = (
            StoredArray(folder, record.vectors, record.rows, spec.size.dim, spec.store_dtype)
            if spec.quantiser is None
            else QuantisedArray(folder, record.vectors, record.rows, spec.quantiser)
        )
        self.ids = StoredArray(folder, record.ids, record.rows, None, "S")
        self._finite = 0  # rows from the first that are known to be finite

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.start + self.record.rows

    def moved(self, start: int) -> Shard:
        """Return the same shard of a store in which it starts at another row."""
        return Shard(self.folder, self.record, start, self.spec)

    def check_finite(self, rows: np.ndarray, low: int) -> None:
        """Check that rows are finite; rows that match their checksums are not checked, as their writer did so.

        Args:
            rows: What was read of the vectors [n, dim].
            low: The row of the shard with which they begin. Rows that are read in order are checked once.

        Raises:
            UserError: A number is NaN or infinite.
        """
        if low + len(rows) > self._finite and not self.vectors.compared:
            check_finite(rows)
            if low <= self._finite:
                self._finite = low + len(rows)


def checked_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Return row numbers as int64.

    Args:
        rows: Integers [n], in any order, or one.
        count: Rows of the store.

    Raises:
        IndexError: They are no integers, or one is negative or not below `count`.
    """
    rows = np.atleast_1d(np.asarray(rows))
    if rows.size and rows.dtype.kind not in "iu":  # a mask, or positions that were computed as floats
        raise IndexError(f"rows are whole numbers, not {rows.dtype}: of a mask, take np.flatnonzero(mask)")
    rows = rows.astype(np.int64, copy=False)
    # A negative row would read from the end without an error.
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        raise IndexError(f"rows lie from 0 to {count - 1}")
    return rows
