"""Tab-separated values: no quoting, no escapes, as MS MARCO and BEIR ship them; plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.fields import is_header
from starbucks_retrieval.data.files import decode, raw_lines
from starbucks_retrieval.errors import UserError

Layouts = Mapping[int, tuple[str, ...]]


def rows(path: Path, layouts: Layouts, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, column name → cell) of each line from position `start` up to `stop`.

    The first line settles the columns: a header of known names says them itself, otherwise `layouts` (number of
    columns → names) does. Raises UserError for a line of any other number of columns.
    """
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
        raise _columns(path, first[0], len(cells), " or ".join("<tab>".join(layout) for layout in layouts.values()))
    for number, raw in islice(lines, start, stop):
        cells = decode(raw, path, number).split("\t")
        if len(cells) != len(names):
            raise _columns(path, number, len(cells), "<tab>".join(names))
        yield number, dict(zip(names, cells))


def _columns(path: Path, number: int, found: int, wanted: str) -> UserError:
    return UserError(
        f"{path}:{number}: {found} column{'s' if found > 1 else ''}, wanted {wanted}",
        "separate columns by one tab, and replace tabs and line breaks inside a text by spaces",
    )
