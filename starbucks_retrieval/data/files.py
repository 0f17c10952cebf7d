"""Read files of lines, plain or gzip, strictly."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from starbucks_retrieval.errors import UserError

_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a plain or .gz file that are not empty, without their line ends.

    Only `\\n` and `\\r\\n` end a line; U+2028 and form feeds are text. A byte order mark is dropped.

    Args:
        path: The file. It is read through gzip if its name ends in .gz.

    Returns:
        An iterator over (line number, bytes). Numbers count all lines from 1, empty ones included.

    Raises:
        UserError: While iterating: the file is missing or a folder, or its gzip data are damaged.
    """
    for number, line in all_lines(path):
        line = line.rstrip(b"\r\n")
        if line:
            yield number, line


def all_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield all lines of a plain or .gz file with their line ends, without a byte order mark.

    Args:
        path: The file. It is read through gzip if its name ends in .gz.

    Returns:
        An iterator over (line number from 1, bytes). Only `\\n` separates lines.

    Raises:
        UserError: While iterating: the file is missing or a folder, or its gzip data are damaged.
    """
    number = 0
    damaged = (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
    )  # local, because readers may outlive modules when the interpreter ends
    try:
        with open_bytes(path) as handle:
            for number, line in enumerate(handle, 1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                yield number, line
    except damaged as error:
        raise UserError(
            f"{path}:{number + 1}: damaged gzip ({error})", f"fetch or make the file again; test it: gzip -t {path}"
        ) from None


def decode(raw: bytes, path: Path, number: int) -> str:
    """Decode one line as UTF-8.

    Args:
        raw: The bytes of the line.
        path: The file, for messages.
        number: The number of the line, for messages.

    Raises:
        UserError: The line is not UTF-8; the message has file, line and byte.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: not UTF-8 (byte {error.start + 1} of the line)",
            "convert the file: iconv -f latin1 -t utf-8",
        ) from None


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes, through gzip if its name ends in .gz.

    Returns:
        A buffered file, which the caller closes. Damaged gzip raises an error only when it is read.

    Raises:
        UserError: The file is missing, or is a folder.
    """
    try:
        handle = open(path, "rb", buffering=_BUFFER)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file is needed", "name the file inside it") from None
    if path.suffix != ".gz":
        return handle
    # The outer buffer searches line ends in C, three times faster than GzipFile.
    return cast(BinaryIO, io.BufferedReader(_Gzip(handle), _BUFFER))


class _Gzip(gzip.GzipFile):
    """A gzip reader that closes the file under it."""

    def __init__(self, handle: BinaryIO) -> None:
        super().__init__(fileobj=handle, mode="rb")
        self._under = handle

    def close(self) -> None:
        super().close()
        self._under.close()
