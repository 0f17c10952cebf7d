"""Rows of a file with any column names: csv, tsv, jsonl, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starbucks_retrieval.data.formats import NumberedRows, all_lines, file_endings, find_reader
from starbucks_retrieval.data.formats.csv import named_rows, read_cells
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.quickstart.columns import looks_like_header

_DELIMITERS = ",;\t|"
_TSV = {1: ["text"], 2: ["docid", "text"], 3: ["docid", "title", "text"]}  # without a header, as for other commands
ENDINGS = tuple(ending for ending in file_endings() if not ending.startswith(".txt"))


def read_table(path: Path, encoding: str = "utf-8") -> NumberedRows:
    """Yield (line or row number, column → value) of each row.

    A csv file may have semicolons, tabs or bars between its cells. A tsv file without a header has a text, an id and a
    text, or id, title and text.

    Args:
        path: The file; its ending names the format.
        encoding: Of csv and tsv files.

    Raises:
        UserError: While iterating: a csv file without a header, a row with another number of cells, text in another
            encoding, or another malformed row.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        cells = read_cells(decoded_lines(path, encoding), path, _delimiter(path, encoding))
        names = lambda first: first if looks_like_header(first) else None  # noqa: E731
        return named_rows(cells, path, names, "looks like values, not like names")
    if name.endswith(".tsv"):
        return _tsv_rows(path, encoding)
    return find_reader(path)(path, 0, None, {})


def decoded_lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text with its line end) of each line. Raises UserError for bytes of another encoding."""
    for number, raw in all_lines(path):
        try:
            yield number, raw.decode(encoding)
        except UnicodeDecodeError as error:
            if b"\0" in raw:
                raise UserError(f"{path}:{number}: binary data, not text", "save the table as csv in UTF-8") from None
            raise not_in_encoding(f"{path}:{number}", encoding, error.start, "of the line") from None


def not_in_encoding(where: str, encoding: str, start: int, unit: str) -> UserError:
    """Return the error for bytes that `encoding` does not have."""
    other = "latin-1" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else "utf-8"
    what = f"{where}: not {encoding.upper()} (byte {start + 1} {unit})"
    return UserError(what, f"name the encoding of the file, such as --encoding {other}")


def _delimiter(path: Path, encoding: str) -> str:
    _, header = next(decoded_lines(path, encoding), (1, ""))
    return max(_DELIMITERS, key=header.count)  # a comma if there is none


def _tsv_rows(path: Path, encoding: str) -> NumberedRows:
    names: list[str] | None = None
    for number, line in decoded_lines(path, encoding):
        line = line.rstrip("\r\n")
        if not line:
            continue
        cells = line.split("\t")
        if names is None:
            stripped = [cell.strip() for cell in cells]
            if len(cells) > 1 and looks_like_header(stripped):
                names = stripped
                continue
            if len(cells) not in _TSV:
                raise UserError(
                    f"{path}:{number}: no header, and {len(cells)} columns",
                    "let the first line name the columns, separated by tabs, such as id, title and text",
                )
            names = _TSV[len(cells)]
        if len(cells) != len(names):
            raise UserError(
                f"{path}:{number}: {len(cells)} column{'s' if len(cells) > 1 else ''}, the first line has {len(names)}",
                "separate columns by one tab, and replace tabs and line breaks inside a text by spaces",
            )
        yield number, dict(zip(names, cells))
