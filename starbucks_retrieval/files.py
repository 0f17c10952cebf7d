"""Files and folders that are written atomically: complete under their name, or not there at all."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from starbucks_retrieval import leftovers
from starbucks_retrieval.errors import refuse_folder

_BUFFER = 1 << 20

#: Called with the complete temporary file or folder just before it gets its final name.
BeforeRename = Callable[[Path], None]


@contextlib.contextmanager
def temporary_path(path: str | os.PathLike[str], remove_leftovers: bool = True) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`, which is removed at the end unless it was renamed.

    The file is locked, so that no other writer takes it for that of a killed one.

    Args:
        path: The path that gives the temporary file its name. Missing folders above it are created.
        remove_leftovers: As for `atomic_path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if remove_leftovers:
        leftovers.remove_leftovers(path)
    temporary, lock = leftovers.temporary_name(path), None
    try:
        lock = leftovers.create_locked(temporary)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def atomic_path(
    path: str | os.PathLike[str], remove_leftovers: bool = True, before_rename: BeforeRename | None = None
) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`, and rename it to `path` at the end.

    The file is flushed to the disk before it is renamed, and the folder after it. On an error the temporary file is
    removed and an older file at `path` stays as it is. A killed process leaves the temporary file, which the next
    writer of `path` removes. File systems without locks, and Windows, keep it; see `leftovers.temporaries`.

    Args:
        path: The file to write. Missing folders above it are created.
        remove_leftovers: Remove the temporary files of killed writers of `path`, which lists the folder. Not for the many
            files of a folder that cleans up by itself.
        before_rename: Called with the temporary file when it is complete; `locks.OutputLock.announce`, for example.

    Raises:
        UserError: `path` is a folder.
        OSError: The file cannot be written; the error names `path`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_path(folder / "a.txt") as temporary:
        ...     _ = temporary.write_text("complete")
        >>> [file.name for file in folder.iterdir()]
        ['a.txt']
    """
    path = Path(path)
    refuse_folder(path)
    try:
        with temporary_path(path, remove_leftovers) as temporary:
            yield temporary
            sync_file(temporary)
            if before_rename is not None:
                before_rename(temporary)
            os.replace(temporary, path)
    except OSError as error:
        # A full disk does not say where, and the temporary name would tell the user nothing.
        if error.errno is None or not (error.filename is None or leftovers.is_temporary(error.filename, path)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_writer(
    path: str | os.PathLike[str], remove_leftovers: bool = True, before_rename: BeforeRename | None = None
) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes, as `atomic_path` does; through gzip where the name ends in .gz.

    Gzip files hold neither a name nor a time, so that equal content gives equal bytes.

    Args:
        path: The file to write. Missing folders above it are created.
        remove_leftovers: As for `atomic_path`.
        before_rename: As for `atomic_path`.

    Raises:
        UserError: `path` is a folder.
        OSError: The file cannot be written; the error names `path`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "runs" / "a.txt"
        >>> with atomic_writer(path) as file:
        ...     _ = file.write(b"complete")
        >>> path.read_bytes()
        b'complete'
    """
    path = Path(path)
    atomic = atomic_path(path, remove_leftovers, before_rename)
    with atomic as temporary, open(temporary, "wb", buffering=_BUFFER) as handle:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=handle, mode="wb", mtime=0, compresslevel=6) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield handle


@contextlib.contextmanager
def atomic_folder(path: Path, before_rename: BeforeRename | None = None) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which replaces `path` at the end or is deleted on an error.

    A kill can leave a hidden folder behind, or, between the two renames that replace an older folder, no folder of
    that name; it never leaves an incomplete one. The next writer of `path` removes the hidden folder, or moves the older
    folder back.

    Args:
        path: The folder to write. Missing folders above it are created; an older folder or file there is replaced as a
            whole.
        before_rename: Called with the temporary folder when it is complete.

    Raises:
        OSError: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model"
        >>> with atomic_folder(path) as temporary:
        ...     _ = (temporary / "config.json").write_text("{}")
        >>> [file.name for file in path.iterdir()]
        ['config.json']
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(path)
    temporary, lock = leftovers.temporary_name(path), None
    old = leftovers.old_name(temporary)
    try:
        lock = leftovers.create_locked(temporary, folder=True)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                sync_file(file)
        if before_rename is not None:
            before_rename(temporary)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    leftovers.remove(old)
    sync_folder(path.parent)


def json_bytes(content: Any) -> bytes:
    """Return content as the bytes that `write_json` writes: sorted keys, UTF-8, one space of indentation."""
    return (json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one.

    Args:
        path: The file to write. Missing folders above it are created.
        content: What json.dumps accepts. Equal content gives equal bytes; see `json_bytes`.

    Raises:
        UserError: `path` is a folder.
        OSError: The file cannot be written; the error names `path`.
    """
    text = json_bytes(content)
    with atomic_writer(path) as file:
        file.write(text)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, atomically, as `write_json` does.

    Args:
        path: The file to write. Missing folders above it are created.
        text: The content, written as it is.

    Raises:
        UserError: `path` is a folder.
        OSError: The file cannot be written; the error names `path`.
    """
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the blake2b checksum of a file's bytes.

    Returns:
        32 hex digits, which do not depend on the name or the time of the file.
    """
    with open(path, "rb") as handle:
        return stream_digest(handle)


def stream_digest(handle: Any) -> str:
    """Return the blake2b checksum of an open file's bytes, 32 hex digits."""
    return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sync_file(path: str | os.PathLike[str]) -> None:
    """Flush a file to the disk. Raises OSError if it cannot be opened or flushed.

    Args:
        path: A file, or a folder on systems that can flush one.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make renames inside a folder survive a power cut, on systems that can flush a folder.

    Args:
        folder: The folder. If the system cannot flush it, nothing is raised.
    """
    with contextlib.suppress(OSError):
        sync_file(folder)


@contextlib.contextmanager
def umask_permissions(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Give the files that are written into a folder meanwhile, not below it, the permissions of the umask.

    Some libraries, safetensors among them, write through temporary files that only their owner can read, whatever the
    umask: nobody else on a cluster could read the model. Files that were there before and do not change keep their
    permissions.

    Args:
        folder: The folder. It need not exist yet, but must exist when the `with` block ends.
    """
    folder = Path(folder)
    before = _versions(folder) if folder.is_dir() else {}
    yield
    # Reading the umask means setting it, for all threads.
    with temporary_path(folder / "mode") as probe:
        mode = probe.stat().st_mode & 0o777
    for path, version in _versions(folder).items():
        if before.get(path) != version:
            path.chmod(mode)


def _versions(folder: Path) -> dict[Path, tuple[int, int]]:
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), entry.stat()) for entry in entries if entry.is_file(follow_symlinks=False)]
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found}


def cache_folder() -> Path:
    """Return the folder of cached files: STARBUCKS_CACHE, else starbucks_retrieval in XDG_CACHE_HOME or ~/.cache.

    It may be deleted at any time when no command runs.
    """
    if folder := os.environ.get("STARBUCKS_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "starbucks_retrieval"
