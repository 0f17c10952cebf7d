"""Accepted names of columns, and the conversion of a row's values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

DOCID = ("docid", "_id", "doc_id", "id")
TITLE = ("title",)
TEXT = ("text", "contents")
QUERY_ID = ("query_id", "_id", "qid")
QUERY_TEXT = ("query", "text", "query_text")
# The query of a row of plain texts. The fallback names are read only without the first two, since other tools use them
# for other texts, too.
ANCHOR = ("query", "anchor")
ANCHOR_FALLBACK = ("question", "text", "sentence1", "text1", "query_text")
POSITIVE = ("positive", "answer")
NUMBERED_NEGATIVE = re.compile(r"negative_(\d+)", re.ASCII)
POSITIVE_SCORES = "positive_scores"
NEGATIVE_SCORES = "negative_scores"
PAIR_SCORE = ("score", "label", "similarity_score", "relatedness_score")
SENTENCE1 = ("sentence1", "text1", "sentence_A")
SENTENCE2 = ("sentence2", "text2", "sentence_B")
LABEL = ("label", "coarse_label")
FIRST = ("text", "sentence", "sentence1", "text1")
SECOND = ("text2", "sentence2")
JUDGED_QUERY = ("query-id", "query_id", "qid")
JUDGED_DOC = ("corpus-id", "corpus_id", "docid", "doc_id")
GRADE = ("score", "relevance", "grade", "label")
ANSWERS = ("answers", "answer")
PATTERNS = "patterns"
SUBSET = "subset"
SPLIT = "split"

_GROUP = (*ANCHOR, *ANCHOR_FALLBACK, *POSITIVE, "negative", POSITIVE_SCORES, NEGATIVE_SCORES)
_PAIR = (*PAIR_SCORE, *SENTENCE1, *SENTENCE2, SUBSET, SPLIT, "pair_ID", "entailment_judgment")  # the last two: SICK
# A first tsv line is a header if all its cells are among these, or negative_1, negative_2 …
HEADERS = frozenset({*DOCID, *TITLE, *TEXT, *QUERY_ID, *QUERY_TEXT, *_GROUP, *_PAIR, *ANSWERS, PATTERNS})
# A first csv line is a header if at least one of its cells is among these.
COLUMNS = HEADERS | {*LABEL, *FIRST, *SECOND, *JUDGED_QUERY, *JUDGED_DOC, *GRADE}

# float() alone would also take 1_000, nan and the digits of other scripts.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)

_KINDS = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping", bytes: "bytes"}


def is_header(cells: Sequence[str]) -> bool:
    """Return whether all cells of a first line are names of columns.

    Example:
        >>> is_header(["query", "positive", "negative_1"]), is_header(["d1", "Hens lay eggs."])
        (True, False)
    """
    return all(cell in HEADERS or NUMBERED_NEGATIVE.fullmatch(cell) for cell in cells)


class BadRow(Exception):
    """A row that cannot be used. `Records` adds file and line, and raises it as a UserError.

    Args:
        what: The problem, without file and line.
        hint: What to do about it; empty for nothing.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def value(row: dict[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of several columns that a row has.

    Args:
        row: Column → value.
        names: Accepted names of the column, the preferred one first.

    Returns:
        The value as it is, which can be None: a column that is present counts even if it is null.

    Raises:
        BadRow: The row has none of the columns.

    Example:
        >>> value({"_id": "d1", "text": "Hens"}, DOCID)
        'd1'
    """
    for name in names:
        if name in row:
            return row[name]
    raise BadRow(
        f"no column {_any_of(names)}: the row has {', '.join(map(str, row)) or 'no columns'}",
        f"rename a column to {names[0]}",
    )


def identifier(row: dict[str, Any], names: Sequence[str]) -> str:
    """Return the id in one of several columns, as a string.

    Args:
        row: Column → value.
        names: Accepted names of the column, the preferred one first.

    Raises:
        BadRow: The row has none of the columns, or the value is neither a string nor an integer.

    Example:
        >>> identifier({"id": 17}, DOCID)
        '17'
    """
    return as_id(value(row, names), _any_of(names))


def string(row: dict[str, Any], names: Sequence[str]) -> str:
    """Return the text in one of several columns; empty for null.

    Args:
        row: Column → value.
        names: Accepted names of the column, the preferred one first.

    Raises:
        BadRow: The row has none of the columns, or the value is neither a string nor null.

    Example:
        >>> string({"contents": "Hens"}, TEXT), string({"text": None}, TEXT)
        ('Hens', '')
    """
    return as_text(value(row, names), _any_of(names))


def as_id(found: Any, label: str) -> str:
    """Convert an id to a string; many exporters write numeric ids as integers.

    Args:
        found: The value of a row.
        label: The name of its column, for messages.

    Raises:
        BadRow: The value is neither a string nor an integer. A boolean is refused, too.

    Example:
        >>> as_id(17, "docid"), as_id("d17", "docid")
        ('17', 'd17')
    """
    if type(found) is str:
        return found
    if type(found) is int:
        return str(found)
    raise BadRow(f"{label} is {kind(found)}, not a string or an integer", "give every record an id")


def as_text(found: Any, label: str) -> str:
    """Return a text; null counts as empty.

    Args:
        found: The value of a row.
        label: The name of its column, for messages.

    Raises:
        BadRow: The value is neither a string nor null.

    Example:
        >>> as_text("Hens", "title"), as_text(None, "title")
        ('Hens', '')
    """
    if type(found) is str:
        return found
    if found is None:
        return ""
    raise BadRow(f"{label} is {kind(found)}, not a string", "put it in quotes")


def as_number(found: Any, label: str) -> float:
    """Convert a number, or the text of one (a cell of tsv or csv), to a finite float. Raises BadRow for anything else.

    Args:
        found: The value of a row.
        label: The name of its column, for messages.

    Example:
        >>> as_number("3.5e1", "score")
        35.0
    """
    hint = "write a plain number such as 3.5, or leave the record out"
    if type(found) is str:
        if not _NUMBER.fullmatch(found):
            shown = found if len(found) <= 40 else f"{found[:40]}…"
            raise BadRow(f"{label} is {shown!r}, not a number", hint)
    elif isinstance(found, bool) or not isinstance(found, (int, float)):
        raise BadRow(f"{label} is {kind(found)}, not a number", hint)
    try:
        number = float(found)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadRow(f"{label} is {number}, not a finite number", hint)
    return number


def as_list(found: Any, label: str) -> list[Any]:
    """Return a new list; null counts as empty.

    Args:
        found: The value of a row: a list, a tuple or None.
        label: The name of its column, for messages.

    Raises:
        BadRow: The value has another type; a string is not split into characters.
    """
    if found is None:
        return []
    if isinstance(found, (list, tuple)):
        return list(found)
    raise BadRow(f"{label} is {kind(found)}, not a list", "write it as [..]")


def kind(found: Any) -> str:
    """Return the type of a value in words, for messages.

    Example:
        >>> kind(None), kind(3.5), kind(["d1"])
        ('null', 'a number', 'a list')
    """
    return "null" if found is None else "a string" if type(found) is str else _KINDS.get(type(found), str(type(found)))


def _any_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
