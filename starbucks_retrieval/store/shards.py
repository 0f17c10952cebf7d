"""One shard: its two arrays, and the small JSON file whose presence says that both are whole."""

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
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import shard_file


@dataclass(frozen=True)
class FileRecord:
    """A file's name, length in bytes and blake2b checksum (32 hex digits)."""

    name: str
    bytes: int
    blake2b: str


@dataclass(frozen=True)
class ShardRecord:
    """A shard of `rows` rows from row `start` of its store; `largest_norm` bounds the length of its vectors."""

    shard: int
    start: int
    rows: int
    largest_norm: float
    vectors: FileRecord
    ids: FileRecord

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardRecord:
        """Read what `to_json` wrote; raises TypeError or KeyError for anything else."""
        files = {name: FileRecord(**values[name]) for name in ("vectors", "ids")}
        return cls(**(values | files))

    def problem(self, folder: Path, lengths: Mapping[str, int | None], checksums: bool = True) -> str | None:
        """What is wrong with the shard's files, in words, or None.

        `lengths` is the folder as places.entries lists it. Without `checksums` nothing else is looked at.
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
    """Write one shard so that it is there whole or not at all. `vectors`: [rows, dim], as stored.

    Raises UserError for an id that cannot be stored.
    """
    record = ShardRecord(
        shard=shard,
        start=start,
        rows=len(ids),
        largest_norm=_largest_norm(vectors),
        vectors=_save_array(folder, shard_file(shard, "vectors.npy"), vectors),
        ids=_save_array(folder, shard_file(shard, "ids.npy"), id_array(ids)),
    )
    storage.write_json(folder, shard_file(shard, "json"), record.to_json())
    return record


def load_shard(folder: Path, shard: int) -> ShardRecord | None:
    """The record of a shard, or None when there is none that can be read."""
    try:
        return ShardRecord.from_json(json.loads(storage.read_text(folder / shard_file(shard, "json"))))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_shard(folder: Path, shard: int) -> None:
    """Delete whatever there is of a shard; first the file that vouches for the others."""
    for what in ("json", "vectors.npy", "ids.npy"):
        storage.remove(folder, shard_file(shard, what))


def id_array(ids: list[str]) -> np.ndarray:
    """Ids as a numpy array of UTF-8 bytes. Raises UserError for an id that holds NUL or is not Unicode text."""
    encoded = []
    for docid in ids:
        if "\0" in docid:
            raise UserError(f"the id {docid!r} holds a NUL character", "remove it from the data")
        try:
            encoded.append(docid.encode())
        except UnicodeEncodeError:
            raise UserError(f"the id {docid!r} is not valid Unicode", "mend the data") from None
    return np.array(encoded, dtype=bytes)


def _largest_norm(vectors: np.ndarray) -> float:
    largest = 0.0
    for start in range(0, len(vectors), 1024):  # a little at a time: this is double the width, or four times
        block = vectors[start : start + 1024].astype(np.float64)
        largest = max(largest, float(np.sqrt(np.square(block).sum(axis=1).max())))
    return largest


def _save_array(folder: Path, name: str, array: np.ndarray) -> FileRecord:
    """Write a plain .npy, whole or not at all."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    # Not np.save: on a full disk it raises an error that does not say so.
    parts = (header.getvalue(), array.view(np.uint8).data)
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    storage.write_file(folder, name, parts)
    return FileRecord(
        name, sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts), digest.hexdigest()
    )
