"""File formats: one reader of rows per format, found by the ending of the file's name."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import MAX_LINE
from starbucks_retrieval.registry import Registry

NumberedRows = Iterator[tuple[int, dict[str, Any]]]  # line or row number, column name → value
Layouts = Mapping[int, tuple[str, ...]]  # number of columns → their names, for files without a header
RowReader = Callable[[Path, int, int | None, Layouts], NumberedRows]

_MODULE = "starbucks_retrieval.data.formats"
# In the order in which the files of a BEIR folder are looked for.
FORMATS: Registry[RowReader] = Registry(
    "formats",
    "file format",
    {
        ".jsonl": (f"{_MODULE}.jsonl:rows", "one JSON object per line"),
        ".tsv": (f"{_MODULE}.tsv:rows", "tab-separated, with or without a header"),
        ".csv": (f"{_MODULE}.csv:rows", "comma-separated, with a header"),
        ".parquet": (f"{_MODULE}.arrow:parquet_rows", "Parquet"),
        ".json": (f"{_MODULE}.jsonl:rows", "one JSON object per line"),
        ".txt": (f"{_MODULE}.tsv:rows", "tab-separated, with or without a header"),
        ".arrow": (f"{_MODULE}.arrow:rows", "Arrow stream"),
    },
)
"""The readers of rows by file ending.

A reader is a function `rows(path, start, stop, layouts)` that yields (line or row number from 1, {column: value}) for
the rows from position `start` (from 0) up to but not including `stop`, or to the end where it is None. `layouts` names the
columns of files without a header; a format that names its columns ignores it. The ending may be followed by `.gz`: a
reader of text opens its file with `starbucks_retrieval.data.formats.raw_lines` or `open_bytes`, which decompress it.
"""


def find_reader(path: Path) -> RowReader:
    """Return the reader of a file's format. Raises UserError for a file whose name ends in no known format.

    Example:
        >>> find_reader(Path("corpus.jsonl.gz")).__module__
        'starbucks_retrieval.data.formats.jsonl'
    """
    name = path.name.removesuffix(".gz")
    endings = [ending for ending in FORMATS if name.endswith(ending)]
    if not endings:
        raise UserError(
            f"cannot tell the format of {path} by its name",
            f"rename it to end in {', '.join(FORMATS)}; the text formats also with .gz",
        )
    return FORMATS[max(endings, key=len)]


def file_endings() -> list[str]:
    """Return the endings of files that are read, plain and compressed, in the order in which a folder is searched."""
    return [ending + packed for ending in FORMATS for packed in ("", ".gz")]


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
        UserError: While iterating: the file is missing or a folder, its gzip data are damaged, or a line has more than
            64 MB.
    """
    number = 0
    # Local, because readers may outlive modules when the interpreter ends.
    damaged = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        with open_bytes(path) as handle:
            for number, line in enumerate(iter(partial(handle.readline, MAX_LINE + 1), b""), 1):
                if len(line) > MAX_LINE:
                    what = f"{path}:{number}: a line of more than {MAX_LINE >> 20} MB"
                    raise UserError(what, "end each record with a line break, or cut the text")
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

    Args:
        path: The file.

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
