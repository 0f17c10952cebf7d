"""Locks that leave one writer per folder."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

LOCK = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_LOCKED_BYTE = 1 << 30  # Windows locks bytes and makes them unreadable: one far behind the text of the file

_held: set[FolderLock] = set()
_kept: list[FolderLock] = []  # released, and removed at the end of the process
_keep = False


class FolderLock:
    """An exclusive lock on a folder, held until `release` or the end of the process, even by kill -9.

    A hidden file in the folder names the holder. File systems without locks, and URLs, get a warning instead of a lock.
    Hand-written because the locks of the library filelock do not name their holder.

    Args:
        folder: An existing folder, or an fsspec path of a URL.
        name: The name of the lock file.
        written: What messages say is being written; by default the folder.

    Raises:
        UserError: Another process, or this one, holds the lock; the message names the holder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = FolderLock(Path(folder))
        ...     lock.release()
    """

    def __init__(self, folder: Path, name: str = LOCK, written: Path | None = None) -> None:
        self.path = folder / name
        self._written = folder if written is None else written
        self._descriptor: int | None = None
        self._announced = False
        if not isinstance(folder, Path):  # a URL
            _warn_unlocked(getattr(folder, "protocol", ""))
            return
        self._descriptor = self._take()
        _held.add(self)

    def _take(self) -> int:
        release_kept(self.path)
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                locked = _try_lock(descriptor)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(descriptor)
                    raise
                log.warning("%s cannot be locked: run one job at a time there", self._written)
                return descriptor
            if not locked:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise UserError(
                    f"another process is writing {self._written}{holder}",
                    "wait for it, or choose another output",
                )
            if self._exists(descriptor):
                self._write(descriptor, _announced(_text(descriptor)))
                return descriptor
            os.close(descriptor)  # its last holder removed the file between our open and our lock

    def announce(self, output: Path) -> None:
        """Record that a complete file or folder is about to become the output, or has just become it.

        If the process is killed before it releases the lock, `left_by_killed_run` tells that the output is of that run.

        Args:
            output: The file or folder; it may be renamed afterwards.
        """
        self._announced = True
        if self._descriptor is not None:
            known = _announced(_text(self._descriptor))
            self._write(self._descriptor, [*known, _identity(output)])

    def _write(self, descriptor: int, announced: Sequence[str]) -> None:
        """Replace the text of the lock file; a kill on the way loses no line of it."""
        lines = [f"process {os.getpid()} on {socket.gethostname()}", *announced]
        content = "".join(f"{line}\n" for line in lines).encode()
        with contextlib.suppress(OSError):  # on a full disk the lock only lacks the name of its holder
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, content)
            os.ftruncate(descriptor, len(content))

    def _exists(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file and release the lock; a second call does nothing.

        After `hold_until_exit`, a lock under which an output was announced is released at the end of the process.
        """
        if _keep and self._announced:
            _kept.append(self)
        else:
            self._remove()

    def _remove(self) -> None:
        if self._descriptor is None:
            return
        with contextlib.suppress(PermissionError):  # Windows does not remove open files; a remaining one is harmless
            self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Close the lock file without removing it: a process that shares the lock, such as the parent, keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


class OutputLock(FolderLock):
    """A lock on one output, a file or a folder that is replaced as a whole, by a hidden file beside it.

    Args:
        output: The output. Missing folders above it are created, and removed by `release` if they are empty.

    Raises:
        UserError: Another process, or this one, holds the lock; the message names the holder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, OutputLock(Path(folder, "mined.jsonl")) as lock:
        ...     print(lock.path.name)
        .mined.jsonl.lock
    """

    def __init__(self, output: Path) -> None:
        path = lock_of(output)
        self._created = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path.parent, path.name, output)

    def release(self) -> None:
        """Remove the lock file and release the lock; a second call does nothing."""
        super().release()
        with contextlib.suppress(OSError):  # there is an output
            for folder in self._created:
                folder.rmdir()
        self._created = []

    def __enter__(self) -> OutputLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def hold_until_exit() -> None:
    """Keep the locks of announced outputs until this process ends, after which nobody asks whether it was killed.

    For a command line: a process that is killed after its last line of work, while Python ends, has not told its caller
    that it is done, and the caller runs the same command again.
    """
    global _keep
    _keep = True
    atexit.unregister(release_kept)
    atexit.register(release_kept)


def has_kept() -> bool:
    """Return whether `hold_until_exit` keeps a lock."""
    return bool(_kept)


def release_kept(path: Path | None = None) -> None:
    """Release the locks that `hold_until_exit` kept: that of a lock file, or all, after which none is kept any more.

    Args:
        path: A lock file, as `lock_of` names it; None for all.
    """
    global _keep
    _keep = _keep and path is not None
    for lock in [lock for lock in _kept if path is None or lock.path == path]:
        _kept.remove(lock)
        lock._remove()


def lock_of(output: Path) -> Path:
    """Return the path of the lock file of an output."""
    folder, name = os.path.split(os.path.abspath(output))
    return Path(os.path.realpath(folder)) / f".{name}{LOCK}"


def left_by_killed_run(output: Path, lock: Path) -> bool:
    """Return whether an output was announced under a lock and its process was killed before it released the lock.

    The same command may replace such an output without being told to overwrite: it was not there when the run began, or
    the run had been told so.

    Args:
        output: The file or folder.
        lock: The lock file, as `FolderLock.path` or `lock_of` return it.
    """
    try:
        return _identity(output) in _announced(lock.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False


def _identity(output: Path) -> str:
    stat = output.stat()
    return f"output {stat.st_dev} {stat.st_ino}"


def _announced(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("output ")]


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 10_000).decode("utf-8", "replace")


def _holder(descriptor: int) -> str:
    """Return what the holder wrote into the lock file, or nothing if it has not written yet."""
    first = _text(descriptor).partition("\n")[0].strip()
    return f": {first}" if first else ""


try:
    import fcntl
except ImportError:
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except PermissionError:
            return False
        return True

else:

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _leave_to_parent() -> None:
        """Close inherited locks in a forked process, which would keep them after its parent's end."""
        for lock in tuple(_held):
            lock.forget()

    os.register_at_fork(after_in_child=_leave_to_parent)


@cache
def _warn_unlocked(protocol: str) -> None:
    """Warn once: a job writes many folders."""
    log.warning("%s:// has no locks: run one job at a time on a folder there", protocol)
