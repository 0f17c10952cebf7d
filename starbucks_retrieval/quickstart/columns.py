"""Guess which columns of a table are the texts, the titles and the ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.data import fields
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


@dataclass(frozen=True)
class Columns:
    """The columns of the texts, the title and the id; None where there is none."""

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
    """Guess the columns of queries and their ids. Raises UserError if no column can be the queries."""
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
            f"name one: --text_column {_quoted(found[0])}, or join them: --text_column {' '.join(map(_quoted, found))}",
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


def _quoted(name: str) -> str:
    import shlex

    return shlex.quote(name)
