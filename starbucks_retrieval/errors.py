"""The exception for errors that a user can correct, and a check of paths that raises it."""

from __future__ import annotations

import os


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
