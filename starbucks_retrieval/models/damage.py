"""Errors of libraries that read damaged weights and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from starbucks_retrieval.errors import NO_SPACE, UserError, as_os_error


@contextlib.contextmanager
def explain_damage(path: str | Path, hint: str) -> Iterator[None]:
    """Turn the exceptions of a library that reads weights from a file into a UserError with the file.

    Args:
        path: The safetensors file that is read in the `with` block.
        hint: The remedy.

    Raises:
        UserError: The block raised any other exception but those of the disk.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = as_os_error(error)
        if found is not None and (found.filename or found.errno in NO_SPACE):
            raise
        if type(error).__name__ == "OutOfMemoryError":  # of a GPU
            raise
        raise UserError(f"{path} is damaged ({type(error).__name__})", hint) from None
