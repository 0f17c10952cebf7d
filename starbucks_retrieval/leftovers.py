"""Temporary names beside a file or folder, and what killed writers left under such names."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_DIGITS = 12  # of the random part of a temporary name


def temporary_name(path: Path) -> Path:
    """Return a new hidden name beside a path. It ends in .tmp and no other writer has it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:_DIGITS]}.tmp")


def old_name(temporary: Path) -> Path:
    """Return the name under which the writer of a temporary folder keeps the folder that it replaces."""
    return temporary.with_suffix(".old")


def temporaries(path: Path) -> list[Path]:
    """Return the temporary files and folders of a path, of killed writers and of running ones; 0.1's included.

    Args:
        path: The final path, as it was given to `files.atomic_path` or `files.atomic_folder`.
    """
    return _beside(path, rf"(\.[0-9a-f]{{{_DIGITS}}})?\.tmp")  # no digits: of 0.1


def is_temporary(name: str | os.PathLike[str], path: Path) -> bool:
    """Return whether a file name is a temporary one of a path.

    Args:
        name: The path of the file; its folder counts.
        path: The path that is written through temporary files beside it.
    """
    found = Path(os.fsdecode(name))
    return found.parent == path.parent and found.name.startswith(f".{path.name}.") and found.suffix == ".tmp"


def create_locked(temporary: Path, folder: bool = False) -> int | None:
    """Create a file or folder; return a descriptor that holds a lock on it until it is closed or the process ends.

    The lock follows the file when it is renamed. Where the file system has no locks, `remove_leftovers` removes nothing.

    Args:
        temporary: A new name, from `temporary_name`.
        folder: Create a folder.

    Returns:
        The descriptor; None on Windows.
    """
    while True:
        if folder:
            temporary.mkdir()
        elif fcntl is None:
            temporary.touch()
        if fcntl is None:
            return None
        try:
            descriptor = os.open(temporary, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():
            return descriptor
        os.close(descriptor)  # another writer removed it before it was locked


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files and folders of a path whose writers were killed: no process holds a lock on them.

    A folder that a killed writer had moved aside is moved back if it has no successor, and deleted if it has one.
    """
    if fcntl is None:
        return
    for left in set(temporaries(path)) - {path.with_name(f".{path.name}.tmp")}:  # version 0.1 does not lock
        with contextlib.suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY if left.is_dir() else os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(left)
            finally:
                os.close(descriptor)
    for old in _beside(path, rf"\.[0-9a-f]{{{_DIGITS}}}\.old"):
        with contextlib.suppress(OSError):
            if old.with_suffix(".tmp").exists():  # its writer is about to rename that to `path`
                continue
            if os.path.lexists(path):
                remove(old)
            else:
                old.rename(path)


def remove(path: Path) -> None:
    """Delete a file, or a folder with its content. Errors inside a folder leave the rest."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _beside(path: Path, ending: str) -> list[Path]:
    name = re.compile(rf"\.{re.escape(path.name)}{ending}")
    try:
        return sorted(path.with_name(found) for found in os.listdir(path.parent) if name.fullmatch(found))
    except (FileNotFoundError, NotADirectoryError):
        return []
