"""The names that columns go by, and taking values out of a row under any of them."""

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
# The query of a row of plain texts. The first two say what they are; the others are asked only where neither is there,
# since other tools keep other texts under these names, too.
ANCHOR = ("query", "anchor")
ANCHOR_TOO = ("question", "text", "sentence1", "text1", "query_text")
NUMBERED_NEGATIVE = re.compile(r"negative_(\d+)", re.ASCII)
POSITIVE_SCORES = "positive_scores"
NEGATIVE_SCORES = "negative_scores"
PAIR_SCORE = ("score", "label", "similarity_score")
SENTENCE1 = ("sentence1", "text1")
SENTENCE2 = ("sentence2", "text2")
LABEL = ("label", "coarse_label")
FIRST = ("text", "sentence", "sentence1", "text1")
SECOND = ("text2", "sentence2")
JUDGED_QUERY = ("query-id", "query_id", "qid")
JUDGED_DOC = ("corpus-id", "corpus_id", "docid", "doc_id")
GRADE = ("score", "relevance", "grade", "label")
SUBSET = "subset"
SPLIT = "split"

_GROUP = (*ANCHOR, *ANCHOR_TOO, "positive", "negative", POSITIVE_SCORES, NEGATIVE_SCORES)
_PAIR = (*PAIR_SCORE, *SENTENCE1, *SENTENCE2, SUBSET, SPLIT)
# A first tsv line made of nothing but these, or of negative_1, negative_2 … beside them, is a header.
HEADERS = frozenset({*DOCID, *TITLE, *TEXT, *QUERY_ID, *QUERY_TEXT, *_GROUP, *_PAIR})
# A first csv line has one of these at least, or it is no header.
COLUMNS = HEADERS | {*LABEL, *FIRST, *SECOND, *JUDGED_QUERY, *JUDGED_DOC, *GRADE}

# float() alone would also take 1_000, nan and the digits of other scripts.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)

_KINDS = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping", bytes: "bytes"}


def is_header(cells: Sequence[str]) -> bool:
    """Whether the cells of a first line are names of columns."""
    return all(cell in HEADERS or NUMBERED_NEGATIVE.fullmatch(cell) for cell in cells)


class BadRow(Exception):
    """A row that cannot be used. Whoever knows its file and line turns this into a UserError."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def value(row: dict[str, Any], names: Sequence[str]) -> Any:
    """The value under the first of `names` that the row has. Raises BadRow when it has none."""
    for name in names:
        if name in row:
            return row[name]
    raise BadRow(
        f"no column {_either(names)}: the row has {', '.join(map(str, row)) or 'no columns'}",
        f"rename a column to {names[0]}",
    )


def identifier(row: dict[str, Any], names: Sequence[str]) -> str:
    """The id in one of the columns `names`, as a string."""
    return as_id(value(row, names), _either(names))


def string(row: dict[str, Any], names: Sequence[str]) -> str:
    """The text in one of the columns `names`. Null counts as empty; an absent column is a BadRow."""
    return as_text(value(row, names), _either(names))


def as_id(found: Any, label: str) -> str:
    """An id as a string: integers are what many exporters make of numeric ids."""
    if type(found) is str:
        return found
    if type(found) is int:
        return str(found)
    raise BadRow(f"{label} is {kind(found)}, not a string or an integer", "give every record an id")


def as_text(found: Any, label: str) -> str:
    """A text; null counts as empty."""
    if type(found) is str:
        return found
    if found is None:
        return ""
    raise BadRow(f"{label} is {kind(found)}, not a string", "put it in quotes")


def as_number(found: Any, label: str) -> float:
    """A finite number; also the text of one, which is all that a tsv cell can hold."""
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
    """A list; null counts as empty."""
    if found is None:
        return []
    if isinstance(found, (list, tuple)):
        return list(found)
    raise BadRow(f"{label} is {kind(found)}, not a list", "write it as [..]")


def kind(found: Any) -> str:
    """What a value is, in words."""
    return "null" if found is None else "a string" if type(found) is str else _KINDS.get(type(found), str(type(found)))


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
