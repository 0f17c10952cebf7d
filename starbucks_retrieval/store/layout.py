"""The files of a store: their names, the shards with their numbers, and the manifest.

<output>/L6-D128/manifest.json             the job, its shards, and whether all of them are there
<output>/L6-D128/00000.vectors.npy         [rows, dim] float16, float32 or int8; binary: [rows, dim / 8] uint8
<output>/L6-D128/00000.ids.npy             [rows] bytes, UTF-8
<output>/L6-D128/00000.json                rows and checksums; written last: a shard exists when this file does
<output>/part-00000-of-00004/L6-D128/…     the same for one of several jobs that share a corpus

A file has a blake2b checksum and, since version 0.2, checksums of its blocks of 64 KiB, in the entries `xxh3_64KiB` of
both kinds of .json (see `checksums`). `digest` is a checksum of all other entries. Version 0.1 reads neither.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import Count, FileName, Length, Positive, check_value, parse_json
from starbucks_retrieval.provenance import DIGEST, digest_matches, refuse_newer, with_digest
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.checksums import block_checksums, fits
from starbucks_retrieval.store.spec import FORMAT, VERSION, StoreSpec

MANIFEST = "manifest.json"
_HINT = "delete the folder and encode again"
_BLOCKS = "xxh3_64KiB"
_ARRAYS = ("vectors", "ids")
_SHARD_OF_0_1 = {"shard", "start", "rows", "largest_norm", *_ARRAYS}
_MANIFEST_OF_0_1 = {"format", "version", "complete", "rows", "spec", "shards"}


def shard_file(shard: int, suffix: str) -> str:
    """Return the name of a file of a shard; `suffix` is `vectors.npy`, `ids.npy` or `json`."""
    return f"{shard:05d}.{suffix}"


@dataclass(frozen=True)
class FileRecord:
    """The name, length in bytes and checksums of a file.

    Attributes:
        blake2b: Of the whole file, 32 hex digits.
        blocks: Of its blocks, from `block_checksums`; empty for a file of version 0.1.
    """

    name: FileName
    bytes: Count
    blake2b: str
    blocks: str = ""


@dataclass(frozen=True)
class ShardRecord:
    """A shard of `rows` rows from row `start` of its store; no vector is longer than `largest_norm`."""

    shard: Count
    start: Count
    rows: Positive
    largest_norm: Length
    vectors: FileRecord
    ids: FileRecord

    @property
    def blocks(self) -> dict[str, str]:
        """The checksums of the blocks of its files."""
        return {name: getattr(self, name).blocks for name in _ARRAYS}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping of all but `blocks`: what version 0.1 reads in a manifest."""
        values = asdict(self)
        for name in _ARRAYS:
            del values[name]["blocks"]
        return values

    @classmethod
    def from_json(cls, values: Any, blocks: Mapping[str, str], name: str | Path) -> ShardRecord:
        """Read the results of `to_json` and `blocks`; `name` names the file. Raises UserError for anything else."""
        record = parse_json(json.dumps(values), cls, name, _HINT, "is damaged", extra="forbid")
        files = {one: replace(getattr(record, one), blocks=blocks.get(one, "")) for one in _ARRAYS}
        if not all(fits(file.blocks, file.bytes) for file in files.values() if file.blocks):
            raise UserError(f"{name} is damaged: it has checksums of blocks that the file does not have", _HINT)
        return replace(record, **files)

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


def save_shard(
    folder: Path, shard: int, start: int, ids: list[str], vectors: np.ndarray, longest: float
) -> ShardRecord:
    """Write one shard: its two arrays, then the record that declares them complete.

    Args:
        folder: The folder of the store.
        shard: The number of the shard.
        start: Its first row in the store.
        ids: One id a row.
        vectors: What is stored of the vectors, a row each.
        longest: The length of the longest vector, as it is read.

    Raises:
        UserError: An id cannot be stored.
    """
    record = ShardRecord(
        shard=shard,
        start=start,
        rows=len(ids),
        largest_norm=longest,
        vectors=_save_array(folder, shard_file(shard, "vectors.npy"), vectors),
        ids=_save_array(folder, shard_file(shard, "ids.npy"), id_array(ids)),
    )
    content = record.to_json() | {_BLOCKS: record.blocks}
    storage.write_json(folder, shard_file(shard, "json"), with_digest(content))
    return record


def load_shard(folder: Path, shard: int) -> ShardRecord | None:
    """Return the record of a shard, or None when there is none that can be read.

    Args:
        folder: The folder of the store.
        shard: The number of the shard, from 0.

    The arrays are not opened; `ShardRecord.problem` checks them.

    Raises:
        UserError: A remote folder cannot be reached.
    """
    path = folder / shard_file(shard, "json")
    try:
        text = storage.read_text(path)
    except (OSError, UnicodeDecodeError):
        return None
    try:
        content = parse_json(text, dict[str, Any], path)
        if not digest_matches(content, _SHARD_OF_0_1):
            return None
        values = {name: value for name, value in content.items() if name not in (_BLOCKS, DIGEST)}
        return ShardRecord.from_json(values, check_value(content.get(_BLOCKS, {}), dict[str, str], str(path)), path)
    except UserError:
        return None


def shards_there(folder: Path) -> list[int]:
    """Return the numbers of the shards that have a record that can be read, ascending.

    Args:
        folder: The folder of the store. It is listed: the number of shards in a damaged manifest may be anything.

    Raises:
        UserError: A remote folder cannot be reached.
    """
    numbers = (re.fullmatch(r"(\d{5,})\.json", name) for name in storage.entries(folder))
    return sorted(int(match[1]) for match in numbers if match and load_shard(folder, int(match[1])) is not None)


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
        content = {
            "format": FORMAT,
            "version": self.spec.version,
            "complete": self.complete,
            "rows": sum(record.rows for record in self.shards),
            "spec": self.spec.to_json(),
            "shards": [record.to_json() for record in self.shards],
            _BLOCKS: [record.blocks for record in self.shards],
        }
        return with_digest(content)

    @property
    def has_checksums(self) -> bool:
        """Whether all blocks of all files have checksums."""
        return all(blocks for record in self.shards for blocks in record.blocks.values())


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
    damaged = {"hint": _HINT, "problem": "is damaged"}
    try:
        text = storage.read_text(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{folder} is not an embedding store: it has no {MANIFEST}", "check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not UTF-8", _HINT) from None
    content = parse_json(text, Any, path, **damaged)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not the manifest of an embedding store", "check the path")
    refuse_newer(content.get("version"), VERSION, path, "encode again")
    if not digest_matches(content, _MANIFEST_OF_0_1):
        raise UserError(
            f"{path} is damaged, or was changed after it was written: its digest does not match",
            "copy it again, or delete the folder and encode again",
        )
    written = parse_json(text, _Written, path, **damaged)
    blocks = check_value(content.get(_BLOCKS) or [{}] * len(written.shards), list[dict[str, str]], f"{path} is damaged")
    if len(blocks) != len(written.shards):
        raise UserError(f"{path} is damaged: it has other blocks than shards", _HINT)
    shards = [ShardRecord.from_json(values, found, path) for values, found in zip(written.shards, blocks)]
    manifest = Manifest(StoreSpec.from_json(written.spec, str(path)), shards, written.complete)
    if manifest.complete and len(shards) != manifest.spec.shards:  # before anything counts the shards one by one
        raise UserError(f"{path} is damaged: {len(shards)} shards instead of {manifest.spec.shards}", _HINT)
    return manifest


@dataclass(frozen=True)
class _Written:
    spec: dict[str, Any]
    shards: list[dict[str, Any]]
    complete: bool


def largest_norm(vectors: np.ndarray) -> float:
    """Return the length of the longest vector [rows, dim]."""
    starts = range(0, len(vectors), 1024)  # float64 takes two to four times the memory
    squares = (np.square(vectors[start : start + 1024].astype(np.float64)).sum(axis=1).max() for start in starts)
    return float(np.sqrt(max(squares, default=0.0)))


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
    return FileRecord(name, sum(map(len, pieces)), digest.hexdigest(), block_checksums(pieces))
