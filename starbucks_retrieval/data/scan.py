"""One full pass over a collection before any expensive work, so that bad input stops a job in its first minute."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.data.records import Group, Passage, Query, Records, ScoredPair
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_SUSPECTS = 100_000  # enough to find a true duplicate among them, few enough to hold


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass found.

    count: records. empty: those without any text, title included (kept). digest: blake2b over ids, texts and scores in
    order, 32 hex digits, the same whatever the file format. longest_id: in UTF-8 bytes. ids_with_whitespace: ids that a
    TREC run cannot hold. Both are 0 for pairs, which have no ids.
    """

    count: int
    empty: int
    digest: str
    longest_id: int
    ids_with_whitespace: int


def scan(records: Records[Any], kind: str = "passages") -> Scan:
    """Read all of `records` (kind: passages, queries, groups or pairs) and validate them.

    Raises UserError for a malformed record, an id that is empty or holds a line break or NUL, an id that occurs twice
    (naming both lines; the query ids of groups may repeat), and a collection without records. Memory: 8 bytes per
    record, plus 1 while duplicates are looked for.
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
        # Lengths in front, or ("ab", "c") and ("a", "bc") would give one digest.
        digest.update(f"{len(name)},{','.join(map(str, map(len, texts)))}:{name}{''.join(texts)}".encode())
        empty += blank
        count += 1
    if not count:
        raise UserError(f"{records.name} holds no {kind}", "check the file and the split")
    if kind in ("passages", "queries"):
        _refuse_duplicates(records, parts, hashes)
    if empty:
        log.warning("%s: %d of %d %s %s; they are kept", records.name, empty, count, kind, _LACK[kind])
    return Scan(count, empty, digest.hexdigest(), longest, spaced)


def _check_id(name: str, records: Records[Any], number: int) -> None:
    if not name:
        raise UserError(f"{records.where(number)}: the id is empty", "give every record an id")
    if "\n" in name or "\r" in name or "\0" in name:
        raise UserError(f"{records.where(number)}: the id {name!r} holds a line break or NUL", "take it out of the id")


Parts = tuple[str, tuple[str, ...], bool]  # id, everything the digest covers, whether there is no text


def _passage(passage: Passage) -> Parts:
    title, text = passage.title, passage.text
    return passage.docid, (title, text), not (text.strip() or title.strip())


def _query(query: Query) -> Parts:
    return query.query_id, (query.text,), not query.text.strip()


def _group(group: Group) -> Parts:
    passages = (group.passages or {}).values()
    inline = [text for passage in passages for text in (passage.docid, passage.title, passage.text)]
    if group.scores is not None:  # a row without any keeps the digest it always had
        inline.append(",".join(repr(group.scores[docid]) for docid in (*group.positive_ids, *group.negative_ids)))
    blank = not group.query.strip() or any(_passage(passage)[2] for passage in passages)
    return group.query_id, (group.query, *group.positive_ids, "", *group.negative_ids, "", *inline), blank


def _pair(pair: ScoredPair) -> Parts:
    blank = not (pair.sentence1.strip() and pair.sentence2.strip())
    return "", (pair.sentence1, pair.sentence2, repr(pair.score), pair.subset), blank


_PARTS: dict[str, Callable[[Any], Parts]] = {"passages": _passage, "queries": _query, "groups": _group, "pairs": _pair}
_LACK = {
    "passages": "have no text",
    "queries": "have no text",
    "groups": "lack the text of the query or of a passage",
    "pairs": "lack a sentence",
}


def _refuse_duplicates(records: Records[Any], parts: Callable[[Any], Parts], hashes: array[int]) -> None:
    """Raise UserError if two ids are equal: equal hashes only raise a suspicion, a second pass settles it."""
    import numpy as np

    ordered = np.frombuffer(hashes, dtype=np.int64)
    ordered.sort()
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]][:_SUSPECTS].tolist())
    if not suspects:
        return
    first_line: dict[str, int] = {}
    for number, record in records.numbered():
        name = parts(record)[0]
        if hash(name) in suspects and first_line.setdefault(name, number) != number:
            raise UserError(
                f"{records.where(number)}: the id {name!r} occurs a second time, first at line {first_line[name]}",
                "give every record an id of its own, or remove one of the two",
            )
