"""The data of a call: the ids and texts of the corpus, and the distinct queries with the rows of their positives."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Group, Passage, Records, Scan
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

# Longer ids are kept as Python objects: one long id must not widen the array for all others.
_MAX_ID_BYTES = 128


class Docids:
    """The passage ids of a corpus, sorted, to look up the row of an id.

    Memory: the ids at the width of the longest, and 16 bytes each.

    Args:
        corpus: Passages, read once.
        found: The scan of the same corpus, which knows the count and the longest id.

    Attributes:
        order: int64 [passages], the rows of the corpus by ascending id, compared as UTF-8 bytes.
        ranks: int64 [passages], the position of each row in `order`.

    Raises:
        UserError: The corpus has fewer passages than when it was scanned.
    """

    def __init__(self, corpus: Records[Passage], found: Scan) -> None:
        dtype = f"S{found.longest_id}" if found.longest_id <= _MAX_ID_BYTES else object
        try:
            ids = np.fromiter((passage.docid.encode() for passage in corpus), dtype, found.count)
        except ValueError:
            raise UserError(f"{corpus.name} has become shorter while it was read", "run the command again") from None
        self.order = np.argsort(ids, kind="stable")
        self.ranks = np.empty(len(ids), np.int64)
        self.ranks[self.order] = np.arange(len(ids))
        self._sorted = ids[self.order]

    def __len__(self) -> int:
        return len(self.ranks)

    def rows(self, docids: Sequence[str]) -> np.ndarray:
        """Return the row of each id, -1 for ids that the corpus lacks: int64 [len(docids)]."""
        kind = object if self._sorted.dtype == object else np.bytes_
        wanted = np.array([docid.encode() for docid in docids], kind)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self) - 1)
        return np.where(self._sorted[at] == wanted, self.order[at], -1)


@dataclasses.dataclass(frozen=True)
class Topics:
    """Distinct queries with all their known positives, merged over the groups of the same query.

    Attributes:
        query_ids: [topics].
        texts: [topics], the queries.
        topic_of_group: int32 [groups], the topic of each group, -1 for a group whose positives have no known text.
        starts: int64 [topics + 1]; the (topic, positive) pairs of topic i are starts[i] to starts[i + 1].
        rows: int64 [pairs], the positive's row in the corpus, or the corpus length plus its index in `out_of_corpus`.
        docids: [pairs], the positives' ids.
        out_of_corpus: Positives that are not in the corpus but whose group contains their text.
        outside: Number of groups with a positive outside the corpus.
    """

    query_ids: list[str]
    texts: list[str]
    topic_of_group: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    docids: list[str]
    out_of_corpus: list[Passage]
    outside: int

    def __len__(self) -> int:
        return len(self.query_ids)

    def pairs(self, topic: int) -> slice:
        """Return the slice of a topic's positives in `rows` and `docids`."""
        return slice(int(self.starts[topic]), int(self.starts[topic + 1]))

    def topic_of_pair(self) -> np.ndarray:
        """Return the topic of each pair: int64 [pairs]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def read_topics(groups: Records[Group], docids: Docids) -> Topics:
    """Read the groups once and merge those of the same query.

    Args:
        groups: Training groups. Groups with equal query id and text belong to one query.
        docids: The ids of the corpus.

    Returns:
        The queries in the order of their first group. A positive outside the corpus is kept if its group has its text.

    Raises:
        UserError: No group has a positive in the corpus or one whose text it contains.
    """
    numbers: dict[tuple[str, str], int] = {}
    positives: list[dict[str, int]] = []
    topic_of_group = array("i")
    out_of_corpus: dict[str, Passage] = {}
    extra_rows: dict[str, int] = {}
    outside = with_negatives = 0
    for group in groups:
        with_negatives += bool(group.negative_ids)
        rows = dict(zip(group.positive_ids, docids.rows(group.positive_ids).tolist()))
        lacking = [docid for docid, row in rows.items() if row < 0]
        outside += bool(lacking)
        for docid in lacking:
            if group.passages is None:
                del rows[docid]
            else:
                out_of_corpus.setdefault(docid, group.passages[docid])
                rows[docid] = extra_rows.setdefault(docid, len(docids) + len(extra_rows))
        if not rows:
            topic_of_group.append(-1)
            continue
        number = numbers.setdefault((group.query_id, group.query), len(numbers))
        if number == len(positives):
            positives.append({})
        positives[number].update(rows)
        topic_of_group.append(number)
    if not numbers:
        raise UserError(
            f"no positive of {groups.name} is in the corpus", "give the corpus that the groups or qrels were made for"
        )
    if with_negatives:
        log.info("%d of %d groups have negatives already; mining replaces them", with_negatives, len(topic_of_group))
    if outside:
        log.warning("%d of %d groups have a positive that the corpus lacks", outside, len(topic_of_group))
    return Topics(
        [query_id for query_id, _ in numbers],
        [text for _, text in numbers],
        np.array(topic_of_group, np.int32),
        np.cumsum([0, *map(len, positives)]),
        np.array([row for rows in positives for row in rows.values()], np.int64),
        [docid for rows in positives for docid in rows],
        list(out_of_corpus.values()),
        outside,
    )


class PassageFile:
    """Random access to some passages of a corpus, copied to a temporary file. Memory: 16 bytes a passage.

    Args:
        corpus: Passages, read once.
        rows: Distinct ascending rows to copy.
        count: Number of passages of the corpus.
        folder: Where the temporary file is created; it disappears with the process.

    Raises:
        UserError: The corpus has fewer passages than when it was scanned.
    """

    def __init__(self, corpus: Records[Passage], rows: np.ndarray, count: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rows = rows
        self._starts = np.zeros(len(rows) + 1, np.int64)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        wanted = np.zeros(count, bool)
        wanted[rows] = True
        copied = 0
        for row, passage in enumerate(progress(corpus, count, "passages", "reading texts")):
            if row < count and wanted[row]:
                line = json.dumps([passage.docid, passage.title, passage.text]).encode()
                self._file.write(line)
                self._starts[copied + 1] = self._starts[copied] + len(line)
                copied += 1
        if copied < len(rows):
            raise UserError(f"{corpus.name} has become shorter while it was read", "run the command again")

    def __getitem__(self, row: int) -> Passage:
        position = int(np.searchsorted(self._rows, row))
        start, stop = self._starts[position : position + 2].tolist()
        self._file.seek(start)
        return Passage(*json.loads(self._file.read(stop - start)))

    def __enter__(self) -> PassageFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
