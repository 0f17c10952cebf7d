"""Validate a collection in one pass before any expensive work, or count its records where that is cheap."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starbucks_retrieval.data.formats import find_reader, parquet
from starbucks_retrieval.data.records import Group, Passage, Query, Records, ScoredPair
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_MAX_CANDIDATES = 100_000  # enough to find a true duplicate among them, few enough to hold in memory
SMALL_FILE = 64 << 20  # bytes of a file that is read whole to count its records
_SAMPLE = 4 << 20  # bytes of a larger file from which the number of its lines is estimated


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
        log.warning("%s: %d of %d %s %s; they are kept", records.name, empty, count, kind, _MISSING_TEXT[kind])
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

    Returns:
        The exact number for a Parquet file and for a small file; an estimate from the first lines for a large file;
        unknown for anything else, such as data sets of the hub and of ir_datasets.

    Raises:
        UserError: A file that is read to its end is malformed.
    """
    path = Path(records.source)
    if not path.is_file():
        return RecordCount(None, False)
    if find_reader(path) is parquet.rows:
        return RecordCount(parquet.count_rows(path), True)
    size = path.stat().st_size
    if size <= (SMALL_FILE // 4 if path.suffix == ".gz" else SMALL_FILE):
        return RecordCount(sum(1 for _ in records), True)
    if path.suffix == ".gz":
        return RecordCount(None, False)
    with open(path, "rb") as handle:
        lines = handle.read(_SAMPLE).count(b"\n")
    return RecordCount(round(size / _SAMPLE * lines), False) if lines else RecordCount(None, False)


def _check_id(name: str, records: Records[Any], number: int) -> None:
    if not name:
        raise UserError(f"{records.where(number)}: the id is empty", "give every record an id")
    if "\n" in name or "\r" in name or "\0" in name:
        raise UserError(f"{records.where(number)}: the id {name!r} holds a line break or NUL", "take it out of the id")


Parts = tuple[str, tuple[str, ...], bool]  # id, all texts of the digest, whether there is no text


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
_MISSING_TEXT = {
    "passages": "have no text",
    "queries": "have no text",
    "groups": "lack the text of the query or of a passage",
    "pairs": "lack a sentence",
}


def _refuse_duplicates(records: Records[Any], parts: Callable[[Any], Parts], hashes: array[int]) -> None:
    """Raise UserError if two ids are equal. Equal hashes select candidates, a second pass compares the ids."""
    import numpy as np

    ordered = np.frombuffer(hashes, dtype=np.int64)
    ordered.sort()
    candidates = set(ordered[1:][ordered[1:] == ordered[:-1]][:_MAX_CANDIDATES].tolist())
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
