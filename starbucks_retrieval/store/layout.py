"""The files of a store: their names, the shards with their numbers, and the manifest.

<output>/L6-D128/manifest.json             the job, its shards, and whether all of them are there
<output>/L6-D128/00000.vectors.npy         [rows, dim] float16 or float32
<output>/L6-D128/00000.ids.npy             [rows] bytes, UTF-8
<output>/L6-D128/00000.json                rows and checksums; written last: a shard exists when this file does
<output>/part-00000-of-00004/L6-D128/…     the same for one of several jobs that share a corpus
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import refuse_newer
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.spec import FORMAT, VERSION, StoreSpec

MANIFEST = "manifest.json"

# Conversion of float16.
_BITS = np.int32(-0x70002000)  # 0x8fffe000: a sign, five bits of exponent, ten of mantissa
_SCALE = np.float32(2.0**112)  # the difference of the two formats' exponent biases
_OVERFLOW = np.float32(2.0**16)  # the result for infinity and NaN is at least this; the largest float16 is 65504
_EXPONENT = np.int16(0x7C00)
_PASS = 2**16  # numbers that stay in the cache between the passes over them


def shard_file(shard: int, suffix: str) -> str:
    """Return the name of a file of a shard; `suffix` is `vectors.npy`, `ids.npy` or `json`."""
    return f"{shard:05d}.{suffix}"


@dataclass(frozen=True)
class FileRecord:
    """The name, length in bytes and blake2b checksum (32 hex digits) of a file."""

    name: str
    bytes: int
    blake2b: str


@dataclass(frozen=True)
class ShardRecord:
    """A shard of `rows` rows from row `start` of its store; no vector is longer than `largest_norm`."""

    shard: int
    start: int
    rows: int
    largest_norm: float
    vectors: FileRecord
    ids: FileRecord

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardRecord:
        """Read the result of `asdict`. Raises TypeError or KeyError for anything else."""
        files = {name: FileRecord(**values[name]) for name in ("vectors", "ids")}
        return cls(**(values | files))

    def problem(self, folder: Path, lengths: Mapping[str, int | None], checksums: bool = True) -> str | None:
        """Return a description of the damage to the shard's files, or None.

        Args:
            folder: The folder of the store.
            lengths: The files of the folder and their lengths, from `storage.entries`.
            checksums: Compare checksums too, which reads every file.
        """
        for record in (self.vectors, self.ids):
            path = folder / record.name
            length = lengths.get(record.name)
            if length is None:
                return f"{path} is missing"
            if length != record.bytes:
                return f"{path} has {length} bytes instead of {record.bytes}"
            if checksums and storage.digest(path) != record.blake2b:
                return f"{path} does not match its checksum"
        return None


def save_shard(folder: Path, shard: int, start: int, ids: list[str], vectors: np.ndarray) -> ShardRecord:
    """Write one shard: its two arrays, then the record that declares them complete.

    Args:
        folder: The folder of the store.
        shard: The number of the shard.
        start: Its first row in the store.
        ids: One id a row.
        vectors: [rows, dim], in the type of the store.

    Raises:
        UserError: An id cannot be stored.
    """
    record = ShardRecord(
        shard=shard,
        start=start,
        rows=len(ids),
        largest_norm=largest_norm(vectors),
        vectors=_save_array(folder, shard_file(shard, "vectors.npy"), vectors),
        ids=_save_array(folder, shard_file(shard, "ids.npy"), id_array(ids)),
    )
    storage.write_json(folder, shard_file(shard, "json"), asdict(record))
    return record


def load_shard(folder: Path, shard: int) -> ShardRecord | None:
    """Return the record of a shard, or None when there is none that can be read.

    Args:
        folder: The folder of the store.
        shard: The number of the shard, from 0.

    Returns:
        The content of the shard's .json file. The arrays are not opened; `ShardRecord.problem` checks them.

    Raises:
        UserError: A remote folder cannot be reached.
    """
    try:
        return ShardRecord.from_json(json.loads(storage.read_text(folder / shard_file(shard, "json"))))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_shard(folder: Path, shard: int) -> None:
    """Delete all files of a shard, the record first: without it the shard does not exist.

    Args:
        folder: The folder of the store.
        shard: The number of the shard, from 0. Files that are missing already are not an error.

    Raises:
        UserError: A remote folder cannot be reached.
    """
    for suffix in ("json", "vectors.npy", "ids.npy"):
        storage.remove(folder, shard_file(shard, suffix))


def id_array(ids: list[str]) -> np.ndarray:
    """Return ids as a numpy array of UTF-8 bytes. Raises UserError for an id with NUL or invalid Unicode."""
    encoded = []
    for docid in ids:
        if "\0" in docid:
            raise UserError(f"the id {docid!r} contains a NUL character", "remove it from the data")
        try:
            encoded.append(docid.encode())
        except UnicodeEncodeError:
            raise UserError(f"the id {docid!r} is not valid Unicode", "correct the data") from None
    return np.array(encoded, dtype=bytes)


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json; `shards` is empty until the store is complete."""

    spec: StoreSpec
    shards: list[ShardRecord]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "format": FORMAT,
            "version": self.spec.version,
            "complete": self.complete,
            "rows": sum(record.rows for record in self.shards),
            "spec": self.spec.to_json(),
            "shards": list(map(asdict, self.shards)),
        }


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a store.

    Args:
        folder: The folder of one size.

    Returns:
        The job and its shards. `shards` is empty and `complete` is false while the store is being written.

    Raises:
        UserError: The manifest is missing, damaged or of a newer version, or a remote folder cannot be reached.
    """
    path = folder / MANIFEST
    damaged = UserError(f"{path} is damaged", "delete the folder and encode again")
    try:
        content = json.loads(storage.read_text(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{folder} is not an embedding store: it has no {MANIFEST}", "check the path") from None
    except ValueError:
        raise damaged from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not the manifest of an embedding store", "check the path")
    refuse_newer(content.get("version"), VERSION, path, "encode again")
    try:
        shards = [ShardRecord.from_json(record) for record in content["shards"]]
        return Manifest(StoreSpec.from_json(content["spec"], str(path)), shards, content["complete"] is True)
    except (KeyError, TypeError, AttributeError):
        raise damaged from None


def largest_norm(vectors: np.ndarray) -> float:
    """Return the length of the longest vector [rows, dim]."""
    largest = 0.0
    for start in range(0, len(vectors), 1024):  # float64 takes two to four times the memory
        block = vectors[start : start + 1024].astype(np.float64)
        largest = max(largest, float(np.sqrt(np.square(block).sum(axis=1).max())))
    return largest


def _save_array(folder: Path, name: str, array: np.ndarray) -> FileRecord:
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    # Not np.save: on a full disk it raises an error that does not say so.
    pieces = (header.getvalue(), array.view(np.uint8).reshape(-1).data)
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    storage.write_file(folder, name, pieces)
    return FileRecord(name, sum(map(len, pieces)), digest.hexdigest())


def to_float32(stored: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert stored vectors [rows, dim], float16 or float32, to float32, exactly.

    The bits of a float16, shifted to their positions in a float32, give the number divided by a power of two, also for
    subnormal numbers. This takes a third of the time of NumPy's conversion.

    Args:
        stored: The vectors as they are in the store.
        out: A contiguous float32 array [rows, dim] to write into.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.

    Example:
        >>> to_float32(np.array([[0.5, -65504]], np.float16)).tolist()
        [[0.5, -65504.0]]
    """
    if stored.dtype != np.float16:
        if out is None:
            out = stored.astype(np.float32, copy=False)
        else:
            out[:] = stored
        check_finite(out)
        return out
    if out is None:
        out = np.empty(stored.shape, np.float32)
    source, target = np.ascontiguousarray(stored).reshape(-1).view(np.int16), out.reshape(-1)
    for start in range(0, len(source), _PASS):
        block = target[start : start + _PASS]
        bits = block.view(np.int32)
        bits[:] = source[start : start + _PASS]  # keeps the sign at the top
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _BITS, out=bits)
        np.multiply(block, _SCALE, out=block)
        if block.max() >= _OVERFLOW or block.min() <= -_OVERFLOW:
            raise _damaged()
    return out


def check_finite(stored: np.ndarray) -> None:
    """Check that all numbers of a store are finite.

    Args:
        stored: An array of any shape, float16 or float32.

    Raises:
        UserError: A number is NaN or infinite, which means that the store is damaged.
    """
    if stored.dtype == np.float16:  # all bits of the exponent are set; sums of float16 are slow
        numbers = np.ascontiguousarray(stored).reshape(-1).view(np.int16)
        starts = range(0, len(numbers), _PASS)
        if any((numbers[start : start + _PASS] & _EXPONENT == _EXPONENT).any() for start in starts):
            raise _damaged()
        return
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(stored.sum())  # one sum is enough, unless it overflows
    if suspect and not np.isfinite(stored).all():
        raise _damaged()


def _damaged() -> UserError:
    return UserError(
        "a stored vector has NaN or infinity: the store was damaged or changed after it was written",
        "run starbucks store verify, then encode again",
    )
