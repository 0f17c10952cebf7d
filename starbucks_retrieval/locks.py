"""Locks that leave one writer per folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from functools import cache
from pathlib import Path

from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

LOCK = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_LOCKED_BYTE = 1 << 30  # Windows locks bytes and makes them unreadable: one far behind the text of the file

_held: set[FolderLock] = set()


class FolderLock:
    """An exclusive lock on a folder, held until `release` or the end of the process, even by kill -9.

    A hidden file in the folder names the holder. File systems without locks, and URLs, get a warning instead of a lock.
    Hand-written because the locks of the library filelock do not name their holder.

    Args:
        folder: An existing folder, or an fsspec path of a URL.
        name: The name of the lock file.

    Raises:
        UserError: Another process, or this one, holds the lock; the message names the holder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = FolderLock(Path(folder))
        ...     lock.release()
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self.path = folder / name
        self._descriptor: int | None = None
        if not isinstance(folder, Path):  # a URL
            _warn_unlocked(getattr(folder, "protocol", ""))
            return
        self._descriptor = self._take()
        _held.add(self)

    def _take(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                locked = _try_lock(descriptor)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(descriptor)
                    raise
                log.warning("%s cannot be locked: run one job at a time there", self.path.parent)
                return descriptor
            if not locked:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise UserError(
                    f"another process is writing {self.path.parent}{holder}",
                    "wait for it, or choose another output folder",
                )
            if self._exists(descriptor):
                with contextlib.suppress(OSError):  # on a full disk the lock only lacks the name of its holder
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return descriptor
            os.close(descriptor)  # its last holder removed the file between our open and our lock

    def _exists(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file and release the lock; a second call does nothing."""
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


def _holder(descriptor: int) -> str:
    """Return what the holder wrote into the lock file, or nothing if it has not written yet."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, 1000).decode("utf-8", "replace").strip()
    return f": {text}" if text else ""


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
