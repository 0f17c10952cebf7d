"""Local copies of remote arrays, named by their checksum, so that they can be memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path, file_digest
from starbucks_retrieval.store.storage import download, is_remote

VARIABLE = "STARBUCKS_CACHE"


def cache_folder() -> Path:
    """Where copies are kept: $STARBUCKS_CACHE, else starbucks_retrieval in the user's cache folder.

    Nothing is ever removed from it by us; it may be deleted as a whole at any time when no search runs.
    """
    if own := os.environ.get(VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "starbucks_retrieval"


def local_file(path: Path, length: int, checksum: str) -> Path:
    """A local file of that length and blake2b checksum: `path` itself, or a copy of what is there.

    Raises UserError when there is nothing to copy, it does not match its checksum, or the disk does not take it.
    """
    if not is_remote(path):
        return path
    kept = cache_folder() / checksum[:2] / f"{checksum}{path.suffix}"
    try:
        if kept.is_file() and kept.stat().st_size == length:
            return kept
        with atomic_path(kept) as copy:
            download(path, copy)
            if file_digest(copy) != checksum:
                raise UserError(f"{path} does not match its checksum", "run the command that wrote it again")
    except FileNotFoundError:
        raise UserError(f"{path} is missing", "run the command that wrote it again") from None
    except OSError as error:
        raise UserError(
            f"no copy of {path} can be kept in {cache_folder()}: {error.strerror}",
            f"free some space there, or set {VARIABLE} to another folder",
        ) from None
    return kept
