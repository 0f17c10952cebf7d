"""Read tables with any column names, and guess which columns are the texts, the titles and the ids."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.data import fields
from starbucks_retrieval.data.formats import NumberedRows, all_lines, file_endings, find_reader
from starbucks_retrieval.data.formats.csv import named_rows, read_cells
from starbucks_retrieval.errors import UserError

# Preferred names first; they are compared in lower case, with _ for spaces and dashes.
TEXT_NAMES = (
    *(*fields.TEXT, "content", "body", "passage", "document", "paragraph", "full_text", "article", "abstract"),
    *("description", "summary", "message", "answer", "comment", "comments", "review", "notes", "note", "details"),
)
TITLE_NAMES = (*fields.TITLE, "subject", "headline", "heading", "name", "question")
ID_NAMES = (*fields.DOCID, "document_id", "passage_id", "doc", "pid", "uuid", "guid", "key", "number", "nr", "ticket")
QUERY_TEXT_NAMES = (*fields.QUERY_TEXT, "question", "q", "search", "topic", "title")
QUERY_ID_NAMES = (*fields.QUERY_ID, "id", "topic_id", "number", "nr")

_LONG = 8  # words: a column without a known name whose mean is longer can be the text
# Scripts without spaces: about two characters make a word.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_HEADER_CELL = 40  # characters of a name of a column at most, by which a csv file without a header is told
_DELIMITERS = ",;\t|"
_TSV = {1: ["text"], 2: ["docid", "text"], 3: ["docid", "title", "text"]}  # without a header, as for other commands
ENDINGS = tuple(ending for ending in file_endings() if not ending.startswith(".txt"))


@dataclass(frozen=True)
class Columns:
    """The columns of documents or queries.

    Attributes:
        text: The columns of the text, which are joined.
        title: The column of the title; None where there is none.
        docid: The column of the id; None to take row numbers.
    """

    text: tuple[str, ...]
    title: str | None
    docid: str | None

    def __str__(self) -> str:
        text = " and ".join(self.text)
        title = f"titles from {self.title}" if self.title else "no titles"
        docid = f"ids from {self.docid}" if self.docid else "row numbers as ids"
        return f"texts from column {text} (--text_column), {title} (--title_column), {docid} (--id_column)"


def guess_columns(
    rows: Sequence[Mapping[str, Any]],
    source: str,
    text: Sequence[str] = (),
    title: str | None = None,
    docid: str | None = None,
) -> Columns:
    """Guess the columns that are not named.

    The text is the only column with a known name, or with eight words or more on average.

    Args:
        rows: The first rows: column → value.
        source: The file, for messages.
        text: Columns of the text; empty: guess.
        title: Column of the title; "": none, None: guess.
        docid: Column of the id; "": none, None: guess.

    Raises:
        UserError: A named column does not exist, or no column or several can be the text.

    Example:
        >>> print(guess_columns([{"Ticket": "7", "Body": "Hens lay eggs."}], "docs.csv"))
        texts from column Body (--text_column), no titles (--title_column), ids from Ticket (--id_column)
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for flag, wanted in (("text_column", text), ("title_column", [title]), ("id_column", [docid])):
        for name in wanted:
            if name and name not in names:
                raise UserError(f"{source} has no column {name!r} (--{flag})", f"it has {', '.join(names)}")
    free = [name for name in names if name not in text]
    found_id = _first(free, ID_NAMES) if docid is None else docid or None
    free = [name for name in free if name != found_id]
    found_title = _first(free, TITLE_NAMES) if title is None else title or None
    if text:
        return Columns(tuple(text), found_title, found_id)
    free = [name for name in free if name != found_title]
    found = _text_column(free, rows, source)
    if found is None:
        if found_title is None or title is not None:
            raise UserError(f"{source} has no column of texts", f"name it: --text_column, one of {', '.join(names)}")
        found, found_title = found_title, None
    return Columns((found,), found_title, found_id)


def query_columns(rows: Sequence[Mapping[str, Any]], source: str) -> Columns:
    """Guess the columns of queries and their ids.

    Args:
        rows: The first rows: column → value.
        source: The file, for messages.

    Returns:
        One column of the text, the column of the id, if there is one, and no title.

    Raises:
        UserError: No column can be the queries.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    docid = _first(names, QUERY_ID_NAMES)
    free = [name for name in names if name != docid]
    text = _first(free, QUERY_TEXT_NAMES) or (free[0] if len(free) == 1 else None)
    if text is None:
        raise UserError(f"{source} has no column of queries: it has {', '.join(names)}", "call the column query")
    return Columns((text,), None, docid)


def looks_like_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a first row can be the names of columns: short, different, none a number.

    Example:
        >>> looks_like_header(["Ticket", "Body text"]), looks_like_header(["7", "Hens lay eggs."])
        (True, False)
    """
    named = [cell for cell in cells if cell]
    if any(_plain(cell) in fields.COLUMNS for cell in named):
        return True
    short = all(len(cell) <= _HEADER_CELL and len(cell.split()) <= 4 and cell[-1] not in ".!?" for cell in named)
    return bool(named) and short and not any(cell[0].isdigit() for cell in named) and len(set(named)) == len(named)


def _text_column(free: Sequence[str], rows: Sequence[Mapping[str, Any]], source: str) -> str | None:
    words = {name: _mean_words(name, rows) for name in free}
    words = {name: mean for name, mean in words.items() if mean}
    found = [name for name, mean in words.items() if _plain(name) in TEXT_NAMES or mean >= _LONG]
    if len(found) > 1:
        listed = " and ".join(f"{name} ({words[name]:.0f} words)" for name in found)
        raise UserError(
            f"{source}: {len(found)} columns could be the text: {listed}",
            f"name one: --text_column {shlex.quote(found[0])}, or join them: --text_column {' '.join(map(shlex.quote, found))}",
        )
    return found[0] if found else next(iter(words)) if len(words) == 1 else None


def _mean_words(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
    values = [value for row in rows if isinstance(value := row.get(name), str) and value.strip()]
    values = [value for value in values if not value.startswith(("http://", "https://"))]
    return sum(len(value.split()) + len(_UNSPACED.findall(value)) // 2 for value in values) / max(1, len(values))


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


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
    """Yield (number from 1, text with its line end) of each line.

    Args:
        path: The file, plain or .gz.
        encoding: The name of a Python codec.

    Raises:
        UserError: While iterating: bytes that the encoding does not have, or binary data.
    """
    for number, raw in all_lines(path):
        try:
            yield number, raw.decode(encoding)
        except UnicodeDecodeError as error:
            if b"\0" in raw:
                raise UserError(f"{path}:{number}: binary data, not text", "save the table as csv in UTF-8") from None
            raise not_in_encoding(f"{path}:{number}", encoding, error.start, "of the line") from None


def not_in_encoding(where: str, encoding: str, start: int, unit: str) -> UserError:
    """Return the error for bytes that `encoding` does not have.

    Args:
        where: The file, or file and line, as the message begins.
        encoding: The encoding that was tried.
        start: The position of the first wrong byte, from 0.
        unit: What the position is counted in: "of the line" or "of the file".
    """
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
