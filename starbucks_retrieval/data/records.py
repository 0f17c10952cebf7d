"""The records that readers yield (passages, queries, training groups, scored pairs), and one pass that validates them."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from starbucks_retrieval.data.fields import BadRow
from starbucks_retrieval.data.formats import NumberedRows, arrow, find_reader
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

SMALL_FILE = 64 << 20  # bytes of a file that is read whole to count its records
_MAX_CANDIDATES = 100_000  # enough to find a true duplicate among them, few enough to hold in memory
_COUNTED, _BLOCK = 1 << 30, 1 << 20  # bytes of a larger file in which lines are counted, and of one read

T = TypeVar("T")
Read = Callable[[int, int | None], NumberedRows]  # rows from position `start` up to `stop`
Parts = tuple[str, tuple[str, ...], bool]  # id, all texts of the digest, whether there is no text


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
        """Yield the records of a slice; skipped ones are not parsed.

        Args:
            start: The first position, from 0.
            stop: The position after the last one; None for the end of the collection.

        Raises:
            UserError: While iterating: a row cannot be used; the message names file and line.
        """
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


@dataclass(frozen=True, slots=True)
class Scan:
    """The statistics of a validated collection.

    Attributes:
        count: Number of records.
        empty: Number of records without any text, title included; they are kept.
        digest: blake2b hash over ids, texts and scores in order, 32 hexadecimal digits, independent of the file format.
        longest_id: Length of the longest id in UTF-8 bytes; 0 for pairs, which have no ids.
        ids_with_whitespace: Number of ids that a TREC run cannot hold; 0 for pairs.
    """

    count: int
    empty: int
    digest: str
    longest_id: int
    ids_with_whitespace: int


def scan(records: Records[Any], kind: str = "passages") -> Scan:
    """Read a collection to its end and validate it. Memory: 8 bytes per record, 9 while duplicates are looked for.

    Args:
        records: What an `open_` function returned.
        kind: What the records are: `passages`, `queries`, `groups` or `pairs`.

    Returns:
        The number of records, a digest of their content, and what a run file cannot hold.

    Raises:
        UserError: A malformed record, an id that is empty or holds a line break or NUL, an id that occurs twice (with
            both lines; query ids of groups may repeat), or a collection without records.
    """
    parts = _PARTS[kind]
    hashes = array("q")
    digest = hashlib.blake2b(digest_size=16)
    count = empty = longest = spaced = 0
    for number, record in records.numbered():
        name, texts, blank = parts(record)
        if kind != "pairs":
            _check_id(name, records, number)
            spaced += name.split() != [name]
            longest = max(longest, len(name.encode("utf-8")))
            hashes.append(hash(name))
        # Without lengths, ("ab", "c") and ("a", "bc") would have one digest.
        digest.update(f"{len(name)},{','.join(map(str, map(len, texts)))}:{name}{''.join(texts)}".encode())
        empty += blank
        count += 1
    if not count:
        raise UserError(f"{records.name} holds no {kind}", "check the file and the split")
    if kind in ("passages", "queries"):
        _refuse_duplicates(records, parts, hashes)
    if empty:
        missing = _MISSING_TEXT.get(kind, "have no text")
        log.warning("%s: %d of %d %s %s; they are kept", records.name, empty, count, kind, missing)
    return Scan(count, empty, digest.hexdigest(), longest, spaced)


class RecordCount(NamedTuple):
    """A number of records, None if unknown, and whether it is exact."""

    number: int | None
    exact: bool

    def __str__(self) -> str:
        if self.number is None:
            return "an unknown number of"
        return f"{'' if self.exact else 'about '}{self.number:,}"


def count_records(records: Records[Any]) -> RecordCount:
    """Count the records of a collection where that is cheap.

    Args:
        records: What an `open_` function returned.

    Returns:
        The exact number for a Parquet or Arrow file and for a small file; about the number of
        lines of a large one; unknown for anything else, such as data sets of the hub and of ir_datasets.

    Raises:
        UserError: A file that is read to its end is malformed.
    """
    path = Path(records.source)
    if not path.is_file():
        return RecordCount(None, False)
    for reader, count in ((arrow.rows, arrow.count_rows), (arrow.parquet_rows, arrow.count_parquet_rows)):
        if find_reader(path) is reader:
            return RecordCount(count(path), True)
    size, packed = path.stat().st_size, path.suffix == ".gz"
    if size <= (SMALL_FILE // 4 if packed else SMALL_FILE):
        return RecordCount(sum(1 for _ in records), True)
    lines = read = 0
    with open(path, "rb") as handle:  # equally spaced blocks of a file beyond _COUNTED, none of a compressed one
        for start in range(0, 0 if packed else size, _BLOCK * max(1, size // _COUNTED)):
            handle.seek(start)
            block = handle.read(_BLOCK)
            lines, read = lines + block.count(b"\n"), read + len(block)
    return RecordCount(round(size / read * lines), False) if lines else RecordCount(None, False)


def _check_id(name: str, records: Records[Any], number: int) -> None:
    if not name:
        raise UserError(f"{records.where(number)}: the id is empty", "give every record an id")
    if "\n" in name or "\r" in name or "\0" in name:
        raise UserError(f"{records.where(number)}: the id {name!r} holds a line break or NUL", "take it out of the id")


def _passage(passage: Passage) -> Parts:
    title, text = passage.title, passage.text
    return passage.docid, (title, text), not (text.strip() or title.strip())


def _query(query: Query) -> Parts:
    return query.query_id, (query.text,), not query.text.strip()


def _group(group: Group) -> Parts:
    passages = (group.passages or {}).values()
    inline = [text for passage in passages for text in (passage.docid, passage.title, passage.text)]
    if group.scores is not None:  # a row without scores keeps the digest of earlier versions
        inline.append(",".join(repr(group.scores[docid]) for docid in (*group.positive_ids, *group.negative_ids)))
    blank = not group.query.strip() or any(_passage(passage)[2] for passage in passages)
    return group.query_id, (group.query, *group.positive_ids, "", *group.negative_ids, "", *inline), blank


def _pair(pair: ScoredPair) -> Parts:
    blank = not (pair.sentence1.strip() and pair.sentence2.strip())
    return "", (pair.sentence1, pair.sentence2, repr(pair.score), pair.subset), blank


_PARTS: dict[str, Callable[[Any], Parts]] = {"passages": _passage, "queries": _query, "groups": _group, "pairs": _pair}
_MISSING_TEXT = {"groups": "lack the text of the query or of a passage", "pairs": "lack a sentence"}


def repeated(hashes: array[int]) -> set[int]:
    """Return the hashes that occur more than once, the 100,000 lowest at most, and sort `hashes` (of type "q") in place.

    Example:
        >>> repeated(array("q", [7, 3, 7]))
        {7}
    """
    import numpy as np

    ordered = np.frombuffer(hashes, dtype=np.int64)
    ordered.sort()
    return set(ordered[1:][ordered[1:] == ordered[:-1]][:_MAX_CANDIDATES].tolist())


def _refuse_duplicates(records: Records[Any], parts: Callable[[Any], Parts], hashes: array[int]) -> None:
    """Raise UserError if two ids are equal. Equal hashes select candidates, a second pass compares the ids."""
    candidates = repeated(hashes)
    if not candidates:
        return
    first_line: dict[str, int] = {}
    for number, record in records.numbered():
        name = parts(record)[0]
        if hash(name) in candidates and first_line.setdefault(name, number) != number:
            raise UserError(
                f"{records.where(number)}: the id {name!r} occurs a second time, first at line {first_line[name]}",
                "give every record its own id, or remove one of the two",
            )
