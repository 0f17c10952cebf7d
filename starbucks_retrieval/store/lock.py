"""One writer per folder."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import cache
from pathlib import Path

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store.layout import LOCK
from starbucks_retrieval.store.places import is_remote

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLock:
    """An advisory lock on a folder, held until `release` or the death of the process.

    Raises UserError when another process holds it. Where there are no locks, a warning has to do.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: int | None = None
        if is_remote(folder):
            _warn_of_no_lock(getattr(folder, "protocol", ""))
        else:
            self._descriptor = self._take()

    def _take(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(
                    f"another process is writing {self.path.parent}", "wait for it, or choose another output folder"
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(descriptor)
                    raise
                log.warning("%s cannot be locked: run one job at a time there", self.path.parent)
                return descriptor
            if self._still_there(descriptor):
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
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


@cache
def _warn_of_no_lock(protocol: str) -> None:
    """Once is enough: a job writes many folders."""
    log.warning("%s:// has no locks: run one job at a time on a folder there", protocol)
