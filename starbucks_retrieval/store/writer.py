"""Write a store shard by shard. A killed job resumes, and the result has the same bytes."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import LOCK, FolderLock
from starbucks_retrieval.parsing import parse_json
from starbucks_retrieval.store import storage
from starbucks_retrieval.store.layout import (
    MANIFEST,
    Manifest,
    ShardRecord,
    largest_norm,
    load_shard,
    read_manifest,
    remove_shard,
    save_shard,
)
from starbucks_retrieval.store.spec import FORMAT, SCALES, StoreSpec, job_difference
from starbucks_retrieval.store.storage import PathLike

# Temporary names of this version and of 0.1 included.
_STORE_FILE = re.compile(r"\.lock|\.?(manifest\.json|\d{5,}\.(vectors\.npy|ids\.npy|json))((\.[0-9a-f]+)?\.tmp)?")


class StoreWriter:
    """Write one store. Use it as a context manager, or call `close`.

    Several processes can share the work: one opens the store; then the others `join` it, each writing shards that no
    other writes; when they are done, the first one calls `collect` and `finish`.

    Attributes:
        folder: The folder of the store.
        spec: The job; that of the first start, where it is resumed.
        complete: Whether nothing is left to do.

    Example:
        >>> with StoreWriter.open(folder, spec) as writer:  # doctest: +SKIP
        ...     for shard in writer.missing_shards():
        ...         start, stop = spec.shard_rows(shard)
        ...         writer.write_shard(shard, ids[start:stop], vectors[start:stop])
        ...     writer.finish()
    """

    def __init__(self, folder: Path, spec: StoreSpec, lock: FolderLock | None) -> None:
        self.folder = folder
        self.spec = spec
        self.complete = False
        self._lock = lock
        self._done: dict[int, ShardRecord] = {}

    def __repr__(self) -> str:
        done = f"{len(self._done)} of {self.spec.shards} shards"
        return f"StoreWriter({self.spec.rows} {self.spec.kind} at {self.spec.size}, {done}, in {self.folder})"

    @classmethod
    def open(cls, folder: PathLike, spec: StoreSpec, overwrite: bool = False) -> StoreWriter:
        """Start a store, or resume the same job.

        Args:
            folder: The folder of the store, local or a URL.
            spec: The job.
            overwrite: Replace another store in the folder. Files that no store writes are never touched.

        Raises:
            UserError: The folder holds something else, or another process writes it.
        """
        folder = storage.as_path(folder)
        _check_folder(folder)
        storage.make_folder(folder)
        lock = FolderLock(folder)
        try:
            writer = cls(folder, spec, lock)
            writer._resume(overwrite)
        except BaseException:
            lock.release()
            raise
        return writer

    @classmethod
    def join(cls, folder: PathLike, spec: StoreSpec) -> StoreWriter:
        """Write shards into a store that another process has opened; that process holds the lock and finishes it.

        Args:
            folder: The folder of the store, local or a URL.
            spec: The job, the same as that of the process that opened the store.

        Raises:
            UserError: No process has started the store, or it holds another job.
        """
        folder = storage.as_path(folder)
        if MANIFEST not in storage.entries(folder):
            raise UserError(
                f"{folder} is not started: it has no {MANIFEST}", "let the first process open it, then join"
            )
        manifest = read_manifest(folder)
        # A rerun may learn other scales by a rounding error; those of the first start count.
        if difference := job_difference(manifest.spec, spec, SCALES):
            raise UserError(f"{folder} holds another job: {difference}", "start all processes with the same flags")
        writer = cls(folder, manifest.spec, None)
        writer.collect()
        writer.complete = manifest.complete
        return writer

    def collect(self) -> None:
        """Register the shards that other processes have finished. Checks the lengths of files, not checksums."""
        self._done |= self._records(checksums=False, known=self._done)

    def done_shards(self) -> list[int]:
        """Return the numbers of the complete shards, ascending."""
        return sorted(self._done)

    def missing_shards(self) -> list[int]:
        """Return the numbers of the shards that are still to write, ascending."""
        return [shard for shard in range(self.spec.shards) if shard not in self._done]

    def write_shard(self, shard: int, ids: list[str], vectors: np.ndarray) -> None:
        """Write one shard.

        Args:
            shard: Its number.
            ids: One id a row.
            vectors: [rows, dim] of any float type, cast to that of the store.

        Raises:
            UserError: A vector has NaN or infinity, or the type of the store cannot hold it.
            ValueError: A shape is wrong.
        """
        start, stop = self.spec.shard_rows(shard)
        expected = (stop - start, self.spec.size.dim)
        if not 0 <= shard < self.spec.shards:
            raise ValueError(f"no shard {shard} of {self.spec.shards}")
        if vectors.shape != expected or len(ids) != len(vectors):
            raise ValueError(f"shard {shard} needs {expected} vectors, got {vectors.shape} and {len(ids)} ids")
        if not np.issubdtype(vectors.dtype, np.floating):
            raise ValueError(f"vectors are floating-point numbers, not {vectors.dtype}")
        stored = _to_store_dtype(ids, vectors, self.spec)
        quantiser = self.spec.quantiser
        longest = largest_norm(stored if quantiser is None else quantiser.decode(stored))
        self._done[shard] = save_shard(self.folder, shard, start, ids, stored, longest)

    def finish(self) -> None:
        """Declare the store complete, by its manifest.

        Raises:
            ValueError: Shards are missing, or this writer joined the store that another one opened.
        """
        if self._lock is None:
            raise ValueError("a writer that joined cannot finish the store; the one that opened it does")
        if self.complete:
            return
        if missing := self.missing_shards():
            raise ValueError(f"{len(missing)} shards are missing, the first is {missing[0]}")
        storage.remove_temporaries(self.folder, _is_store_file)  # of killed processes whose shards others wrote
        shards = [self._done[shard] for shard in range(self.spec.shards)]
        storage.write_json(self.folder, MANIFEST, Manifest(self.spec, shards, complete=True).to_json())
        self.complete = True

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, overwrite: bool) -> None:
        manifest = self._old_manifest(overwrite)
        if manifest is not None:
            self.spec = manifest.spec
        # A remote object is never incomplete, and reading all of them again could take as long as the job.
        self._done = {} if manifest is None else self._records(checksums=not storage.is_remote(self.folder))
        done = [self._done[shard] for shard in self.done_shards()]
        complete = manifest is not None and manifest.complete and done == manifest.shards
        if manifest is None or (manifest.complete and not complete):
            storage.write_json(self.folder, MANIFEST, Manifest(self.spec, [], complete=False).to_json())
        for shard in _shards_of(storage.entries(self.folder)) - set(self._done):
            remove_shard(self.folder, shard)
        storage.remove_temporaries(self.folder, _is_store_file)
        self.complete = complete

    def _old_manifest(self, overwrite: bool) -> Manifest | None:
        """Return the manifest of the same job, or None for an empty folder, or one that `overwrite` emptied."""
        names = storage.entries(self.folder)
        started, shards = MANIFEST in names, _shards_of(names)
        if not started and not shards:
            return None
        problem: str | None
        if started:
            try:
                manifest = read_manifest(self.folder)
                problem = job_difference(manifest.spec, self.spec, SCALES)
            except UserError as error:
                problem = error.what
        else:
            problem = f"shards without a {MANIFEST}"
        if problem is None and not overwrite:
            return manifest
        if not overwrite:
            raise UserError(
                f"{self.folder} holds another store: {problem}", "choose another folder, or give --overwrite"
            )
        log.info("overwriting the store in %s", self.folder)
        for shard in shards:
            remove_shard(self.folder, shard)
        storage.remove(self.folder, MANIFEST)
        return None

    def _records(self, checksums: bool, known: Container[int] = ()) -> dict[int, ShardRecord]:
        """Return the records of undamaged shards; log the others."""
        done = {}
        lengths = storage.entries(self.folder)
        for shard in sorted(_shards_of(lengths)):
            if shard in known:
                continue
            record = load_shard(self.folder, shard)
            if record is None or shard >= self.spec.shards:
                continue
            start, stop = self.spec.shard_rows(shard)
            problem = record.problem(self.folder, lengths, checksums)
            if problem is None and (record.shard, record.start, record.rows) == (shard, start, stop - start):
                done[shard] = record
            else:
                log.warning("shard %d is written again: %s", shard, problem or "it belongs to another job")
        return done


def _is_store_file(name: str) -> bool:
    return _STORE_FILE.fullmatch(name) is not None


def _check_folder(folder: Path) -> None:
    if storage.exists(folder) and not storage.is_folder(folder):
        raise UserError(f"{folder} is a file, a folder is needed", "choose another output folder")
    names = sorted(storage.entries(folder))
    foreign = next((name for name in names if not _is_store_file(name)), None)
    if foreign is None and MANIFEST in names and not _is_our_manifest(folder / MANIFEST):
        foreign = MANIFEST
    if foreign is not None:
        raise UserError(
            f"{folder} holds something else: {foreign}",
            "choose another output folder; --overwrite replaces stores only",
        )


def _is_our_manifest(path: Path) -> bool:
    try:
        text = storage.read_text(path)  # a folder that cannot be reached raises a UserError
    except (OSError, UnicodeDecodeError):
        return False
    try:
        content = parse_json(text, Any, path)
    except UserError:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _shards_of(names: Iterable[str]) -> set[int]:
    """Return the numbers of all shards with any file, temporary ones included."""
    matches = (re.match(r"\.?(\d{5,})\.", name) for name in names if name != LOCK)
    return {int(match[1]) for match in matches if match}


def _to_store_dtype(ids: list[str], vectors: np.ndarray, spec: StoreSpec) -> np.ndarray:
    _refuse_rows(ids, ~np.isfinite(vectors), "has NaN or infinity in its embedding", "check the model and its dtype")
    if spec.quantiser is not None:
        return spec.quantiser.encode(vectors)
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.dtype(spec.store_dtype).newbyteorder("<"), copy=False)
    if stored.dtype.itemsize < vectors.dtype.itemsize:
        what = f"has an embedding too large for {spec.store_dtype}"
        _refuse_rows(ids, ~np.isfinite(stored), what, "give --store_dtype float32")
    return stored


def _refuse_rows(ids: list[str], bad: np.ndarray, what: str, hint: str) -> None:
    rows = np.flatnonzero(bad.any(axis=1))
    if len(rows):
        more = f" (and {len(rows) - 1} more of this shard)" if len(rows) > 1 else ""
        raise UserError(f"{ids[rows[0]]!r} {what}{more}", hint)
