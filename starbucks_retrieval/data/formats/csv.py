"""Comma-separated values under a header, cells in quotes where they need them, as spreadsheets write; plain or gzip."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.fields import COLUMNS
from starbucks_retrieval.data.files import all_lines, decode
from starbucks_retrieval.errors import UserError

# Python's own limit is less than a long document has. Without any, a quote that is never closed would be a cell of all
# that follows.
_LONGEST = 1 << 24  # characters of a cell
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))


def rows(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line where the row begins, column name → cell) of each row from position `start` up to `stop`.

    The first row names the columns. Cells may hold commas, line breaks and doubled quotes if they stand in quotes; empty
    lines are left out, and columns without a name. Raises UserError for a row of another number of cells, quotes that do
    not fit, NUL bytes, and a first row that is no header or names a column twice.
    """
    yield from islice(_named(_rows(path), path), start, stop)


def _named(found: Iterator[tuple[int, list[str]]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number, cells = next(found, (1, []))
    names = [cell.strip() for cell in cells]
    if names and COLUMNS.isdisjoint(map(str.lower, names)):
        raise UserError(
            f"{path}:{number}: no header: {_shown(', '.join(names))} names no column that is known",
            "let the first line name the columns, separated by commas, such as docid,title,text",
        )
    twice = [name for place, name in enumerate(names) if name and name in names[:place]]
    if twice:
        raise UserError(f"{path}:{number}: two columns are called {twice[0]!r}", "give each its own name")
    for number, cells in found:
        if len(cells) != len(names):
            raise UserError(
                f"{path}:{number}: {len(cells)} cell{'s' if len(cells) > 1 else ''}, the header names {len(names)}",
                "put a cell with a comma, a quote or a line break between double quotes, and double a quote inside it",
            )
        yield number, {name: cell for name, cell in zip(names, cells) if name}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with the line where it begins."""
    last = 0  # the line read last

    def lines() -> Iterator[str]:
        nonlocal last
        for last, raw in all_lines(path):
            line = decode(raw, path, last)
            if "\0" in line:
                raise UserError(
                    f"{path}:{last}: a NUL byte", "the file is damaged or in UTF-16; if so: iconv -f utf-16 -t utf-8"
                )
            yield line

    reader = csv.reader(lines(), strict=True)
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
