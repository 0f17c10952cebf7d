"""One writer per folder."""

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
_BEYOND = 1 << 30  # Windows locks bytes, and nobody else can read those: one far behind the text of the file

_held: set[FolderLock] = set()


class FolderLock:
    """A lock on a folder that exists, held until `release` or the death of the process, even by kill -9.

    A hidden file in the folder names the holder. Raises UserError, naming it, when another process holds the lock, or
    this one does already. Where there are no locks, as for URLs, a warning has to do.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: int | None = None
        if not isinstance(folder, Path):  # a URL
            _warn_of_no_lock(getattr(folder, "protocol", ""))
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
            if self._still_there(descriptor):
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return descriptor
            os.close(descriptor)  # its last holder removed the file between our open and our lock

    def _still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file and let go; a second call does nothing."""
        if self._descriptor is None:
            return
        with contextlib.suppress(PermissionError):  # Windows removes no open file; a left one does no harm
            self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Close the lock file and leave it where it is: the lock goes on if another process shares it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


def _holder(descriptor: int) -> str:
    """What the holder wrote into the lock file; nothing if it has not come to that."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, 1000).decode("utf-8", "replace").strip()
    return f": {text}" if text else ""


try:
    import fcntl
except ImportError:
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
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
        """A forked process shares its parent's locks, and would keep them when the parent dies."""
        for lock in tuple(_held):
            lock.forget()

    os.register_at_fork(after_in_child=_leave_to_parent)


@cache
def _warn_of_no_lock(protocol: str) -> None:
    """Once is enough: a job writes many folders."""
    log.warning("%s:// has no locks: run one job at a time on a folder there", protocol)
