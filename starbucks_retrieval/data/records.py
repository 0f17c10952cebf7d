"""The records that readers yield (passages, queries, training groups, scored pairs) and collections of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starbucks_retrieval.data.fields import BadRow
from starbucks_retrieval.data.formats import NumberedRows
from starbucks_retrieval.errors import UserError

T = TypeVar("T")
Read = Callable[[int, int | None], NumberedRows]  # rows from position `start` up to `stop`


@dataclass(frozen=True, slots=True)
class Passage:
    """A document of a corpus. `title` is empty if it has none."""

    docid: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """A query."""

    query_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """A training group: a query, its positives and its hard negatives.

    Attributes:
        query_id: Id of the query; several groups may share it.
        query: Text of the query.
        positive_ids: Ids of the positives.
        negative_ids: Ids of the hard negatives; none of them is a positive.
        passages: id → passage if the row has texts, None if the ids refer to a corpus.
        scores: id → score of a teacher, None without scores.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    passages: dict[str, Passage] | None
    scores: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """Two sentences and their similarity on the scale of the collection. `subset` is empty if it has none."""

    sentence1: str
    sentence2: str
    score: float
    subset: str


def join_text(passage: Passage, separator: str = " ", prefix: str = "") -> str:
    """Return the text given to the model: prefix + title + separator + text, stripped; no separator without a title.

    Example:
        >>> join_text(Passage("d1", "Hens", "They lay eggs."), separator=": ", prefix="passage: ")
        'passage: Hens: They lay eggs.'
    """
    body = f"{passage.title}{separator}{passage.text}" if passage.title else passage.text
    return (prefix + body).strip()


class Records(Generic[T]):
    """A collection in a fixed order, streamed in constant memory each time it is iterated.

    Iterating raises UserError for a bad row, with `source` and the line (files of text) or row (tables, data sets), both
    counted from 1.

    Args:
        name: The collection as the user wrote it.
        source: The file or data set that is read.
        read: Reads numbered rows from position `start` up to `stop`.
        make: Converts a row to a record. Raises BadRow for a row that cannot be used.
    """

    def __init__(self, name: str, source: str, read: Read, make: Callable[[dict[str, Any]], T]) -> None:
        self.name = name
        self.source = source
        self._read = read
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self.rows()

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[T]:
        """Yield the records from position `start` (from 0) up to but not including `stop`; skipped ones are not parsed."""
        for _, record in self.numbered(start, stop):
            yield record

    def numbered(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, T]]:
        """Yield (line or row number from 1, record) as `rows` does; `where` formats the number for messages."""
        for number, row in self._read(start, stop):
            try:
                record = self._make(row)
            except BadRow as error:
                raise UserError(f"{self.where(number)}: {error.what}", error.hint) from None
            yield number, record

    def where(self, number: int) -> str:
        """Return `path:12`, for messages."""
        return f"{self.source}:{number}"

    def __repr__(self) -> str:
        return f"Records({self.name!r})"
