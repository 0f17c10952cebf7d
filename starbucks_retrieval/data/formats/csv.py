"""Comma-separated values under a header, with quoted cells where needed, as spreadsheets write them; plain or gzip."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from starbucks_retrieval.data.fields import COLUMNS
from starbucks_retrieval.data.formats import Layouts, NumberedRows, all_lines, decode
from starbucks_retrieval.errors import UserError

# Python's default limit is shorter than a long document. Without a limit, a quote that is never closed would make one
# cell of the rest of the file.
_LONGEST = 1 << 24  # characters of a cell
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (line where the row begins, column name → cell) of each row.

    The first row names the columns; known names may be in capitals. Quoted cells may hold commas, line breaks and
    doubled quotes; empty lines and columns without a name are left out.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the file.
        layouts: Ignored: the first row names the columns.

    Raises:
        UserError: While iterating: a row with another number of cells, misplaced quotes, NUL bytes, or a first row that
            is no header or names a column twice.
    """
    lines = ((number, decode(raw, path, number)) for number, raw in all_lines(path))
    yield from islice(named_rows(read_cells(lines, path), path, _known_names), start, stop)


def _known_names(cells: list[str]) -> list[str] | None:
    """Return the names of the columns, the known ones in lower case; None if no name is known."""
    if COLUMNS.isdisjoint(map(str.lower, cells)):
        return None
    return [cell.lower() if cell.lower() in COLUMNS and cell.lower() not in cells else cell for cell in cells]


def named_rows(
    found: Iterator[tuple[int, list[str]]],
    path: Path,
    header: Callable[[list[str]], list[str] | None],
    problem: str = "names no known column",
) -> NumberedRows:
    """Yield (line, column name → cell) of each row below the header, which is the first row.

    Args:
        found: (line, cells) of each row.
        path: The file, for messages.
        header: Turns the cells of the first row, stripped, into the names of the columns; None if they are no names.
        problem: What the message says of a first row that is no header.

    Raises:
        UserError: The first row is no header or names a column twice, or a row has another number of cells.
    """
    number, cells = next(found, (1, []))
    stripped = [cell.strip() for cell in cells]
    names = header(stripped) if stripped else []
    if names is None:
        line = ", ".join(stripped)
        raise UserError(
            f"{path}:{number}: no header: {line if len(line) <= 60 else f'{line[:60]}…'!r} {problem}",
            "let the first line name the columns, separated by commas, such as docid,title,text",
        )
    twice = [name for i, name in enumerate(names) if name and name in names[:i]]
    if twice:
        raise UserError(f"{path}:{number}: two columns are called {twice[0]!r}", "give each its own name")
    for number, cells in found:
        if len(cells) != len(names):
            raise UserError(
                f"{path}:{number}: {len(cells)} cell{'s' if len(cells) > 1 else ''}, the header names {len(names)}",
                "put a cell with a comma, a quote or a line break between double quotes, and double a quote inside it",
            )
        yield number, {name: cell for name, cell in zip(names, cells) if name}


def read_cells(
    numbered: Iterable[tuple[int, str]], path: Path, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of the rows that are not empty, each with the line where it begins.

    Args:
        numbered: The lines of the file, with their numbers from 1 and their ends.
        path: The file, for messages.
        delimiter: The character between two cells.

    Raises:
        UserError: While iterating: misplaced quotes or a NUL byte.
    """
    last = 0  # number of the last line read

    def lines() -> Iterator[str]:
        nonlocal last
        for last, line in numbered:
            if "\0" in line:
                raise UserError(
                    f"{path}:{last}: a NUL byte", "the file is damaged or in UTF-16; if so: iconv -f utf-16 -t utf-8"
                )
            yield line

    reader = csv.reader(lines(), strict=True, delimiter=delimiter)
    while True:
        first = last + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _malformed(path, first, last, str(error)) from None
        if cells is None:
            return
        if cells:
            yield first, cells


def _malformed(path: Path, first: int, last: int, error: str) -> UserError:
    where = f"{path}:{last}" if last <= first else f"{path}:{last}: the row that begins at line {first}"
    if "field larger" in error:
        return UserError(
            f"{where}: a cell of more than {_LONGEST} characters",
            "close the quote where the cell ends, or cut the text",
        )
    if "unexpected end" in error:
        return UserError(f"{where}: the file ends inside a quoted cell", "close the quote where the cell ends")
    if "new-line" in error:
        return UserError(f"{where}: a carriage return inside a line", "end lines by \\n or \\r\\n")
    return UserError(f"{where}: malformed csv: {error}", "put the whole cell between double quotes, doubled inside it")
