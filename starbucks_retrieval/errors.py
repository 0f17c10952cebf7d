"""The exception for errors that a user can correct, and a check of paths that raises it."""

from __future__ import annotations

import errno
import os
import re

# The disk, a quota or a limit on the size of files (ulimit -f) ended a write.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers
# torch and, of an array that could not be written, numpy
_UNNUMBERED = re.compile(
    r"PytorchStreamWriter failed writing|iostream error|inline_container.*unexpected pos|requested and \d+ written"
)


class UserError(Exception):
    """Bad input: the problem, and how to solve it.

    Commands print both lines and exit with status 2. Any other exception that leaves a command is a bug.

    Args:
        what: The problem and its place, such as the file and line.
        hint: The remedy.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  {self.hint}" if self.hint else self.what


def refuse_folder(path: str | os.PathLike[str] | None) -> None:
    """Check the path of a file to write, before the work begins.

    Args:
        path: The path; None is no path.

    Raises:
        UserError: The path is a folder.
    """
    if path and os.path.isdir(path):
        raise UserError(f"{path} is a folder, a file is needed", "name the file inside it")


def as_os_error(error: BaseException) -> OSError | None:
    """Return what an exception says about the operating system.

    safetensors, tokenizers, torch and numpy raise exceptions of their own when a file cannot be written.

    Args:
        error: Any exception.

    Returns:
        `error` itself if it is an OSError; an OSError with the number that its text gives; for torch and numpy, which give
        none, the error of a full disk; else None.

    Example:
        >>> as_os_error(RuntimeError("I/O error: No space left on device (os error 28)"))
        OSError(28, 'No space left on device')
        >>> as_os_error(OSError("16 requested and 0 written"))
        OSError(28, 'No space left on device')
        >>> as_os_error(ValueError("not a file"))
    """
    if isinstance(error, OSError) and (error.errno is not None or not _UNNUMBERED.search(str(error))):
        return error
    if found := _RUST.search(str(error)):
        return OSError(int(found[1]), os.strerror(int(found[1])))
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if _UNNUMBERED.search(str(error)) else None
