"""Tab-separated values: no quoting, no escapes, as MS MARCO and BEIR ship them; plain or gzip."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from starbucks_retrieval.data.fields import is_header
from starbucks_retrieval.data.formats import Layouts, NumberedRows, decode, raw_lines
from starbucks_retrieval.errors import UserError


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (line number, column name → cell) of each line.

    A first line of known column names is a header.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0; the header is no row.
        stop: The position after the last one; None for the end of the file.
        layouts: Number of columns → their names, for a file without a header.

    Raises:
        UserError: While iterating: a line has another number of columns.
    """
    layouts = layouts or {}
    lines = raw_lines(path)
    first = next(lines, None)
    if first is None:
        return
    cells = decode(first[1], path, first[0]).split("\t")
    if len(cells) > 1 and is_header(cells):
        names = tuple(cells)
    elif len(cells) in layouts:
        names = layouts[len(cells)]
        lines = chain([first], lines)
    else:
        expected = " or ".join("<tab>".join(layout) for layout in layouts.values()) or "a header"
        raise _wrong_columns(path, first[0], len(cells), expected)
    for number, raw in islice(lines, start, stop):
        cells = decode(raw, path, number).split("\t")
        if len(cells) != len(names):
            raise _wrong_columns(path, number, len(cells), "<tab>".join(names))
        yield number, dict(zip(names, cells))


def _wrong_columns(path: Path, number: int, found: int, expected: str) -> UserError:
    return UserError(
        f"{path}:{number}: {found} column{'s' if found > 1 else ''}, wanted {expected}",
        "separate columns by one tab, and replace tabs and line breaks inside a text by spaces",
    )
