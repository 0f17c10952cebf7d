"""What the readers yield: passages, queries, training groups, scored pairs; and collections to read again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starbucks_retrieval.data.fields import BadRow
from starbucks_retrieval.errors import UserError

T = TypeVar("T")
Read = Callable[[int, int | None], Iterator[tuple[int, dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Passage:
    """One document of a corpus. `title` is empty where there is none."""

    docid: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """One query."""

    query_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """One training row: a query, its positives and its hard negatives (never a positive's id).

    `passages` maps every id of the row to its passage where the row carries texts, and is None where the ids refer to
    a corpus. `scores` maps every id of the row to a teacher's score, and is None where the row has none.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    passages: dict[str, Passage] | None
    scores: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """Two sentences and how alike they are, on the collection's own scale. `subset` is empty where there is none."""

    sentence1: str
    sentence2: str
    score: float
    subset: str


def join_text(passage: Passage, separator: str = " ", prefix: str = "") -> str:
    """The text given to the model: prefix + title + separator + text, stripped; no separator without a title."""
    body = f"{passage.title}{separator}{passage.text}" if passage.title else passage.text
    return (prefix + body).strip()


class Records(Generic[T]):
    """A collection in a fixed order, streamed in constant memory each time it is iterated.

    `name` is what the user typed and `source` the file or data set behind it. Errors raised while iterating name
    `source` and the line (files) or row (tables, data sets), both counted from 1.
    """

    def __init__(self, name: str, source: str, read: Read, make: Callable[[dict[str, Any]], T]) -> None:
        self.name = name
        self.source = source
        self._read = read
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self.rows()

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[T]:
        """The records from position `start` (from 0) up to but not including `stop`; skipped ones are not parsed."""
        for _, record in self.numbered(start, stop):
            yield record

    def numbered(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, T]]:
        """Like `rows`, each record with its line or row number; `where` turns that into a place to print."""
        for number, row in self._read(start, stop):
            try:
                record = self._make(row)
            except BadRow as error:
                raise UserError(f"{self.where(number)}: {error.what}", error.hint) from None
            yield number, record

    def where(self, number: int) -> str:
        """`path:12`, for messages."""
        return f"{self.source}:{number}"

    def __repr__(self) -> str:
        return f"Records({self.name!r})"
