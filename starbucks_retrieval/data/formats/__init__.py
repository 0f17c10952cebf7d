"""File formats: one reader of rows per format, found by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
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
        ".parquet": (f"{_MODULE}.parquet:rows", "Parquet"),
        ".json": (f"{_MODULE}.jsonl:rows", "one JSON object per line"),
        ".txt": (f"{_MODULE}.tsv:rows", "tab-separated, with or without a header"),
        ".arrow": (f"{_MODULE}.arrow:rows", "Arrow stream"),
    },
)
"""The readers of rows by file ending.

A reader is a function `rows(path, start, stop, layouts)` that yields (line or row number from 1, {column: value}) for
the rows from position `start` (from 0) up to but not including `stop`, or to the end where it is None. `layouts` names the
columns of files without a header; a format that names its columns ignores it. The ending may be followed by `.gz`: a
reader of text opens its file with `starbucks_retrieval.data.files.raw_lines` or `open_bytes`, which decompress it.
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
