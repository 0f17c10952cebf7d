"""The distinct queries of the training groups, and where their positives are."""

from __future__ import annotations

import dataclasses
from array import array

import numpy as np

from starbucks_retrieval.data import Group, Passage, Records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.docids import Docids


@dataclasses.dataclass(frozen=True)
class Topics:
    """Queries with all their known positives, those of every group that asks the same query.

    query_ids, texts: [topics]. of_group: int32 [groups], the topic of each group, -1 for one without any positive whose
    text is known. starts: int64 [topics + 1], the pairs of topic i being starts[i] to starts[i + 1]. rows: int64
    [pairs], the positive's row in the corpus, or the corpus' length plus its place in `out_of_corpus`. docids: [pairs].
    strays: positives that are not in the corpus but whose groups carry their text. outside: groups that have a positive
    outside the corpus. with_negatives: groups that came with negatives of their own.
    """

    query_ids: list[str]
    texts: list[str]
    of_group: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    docids: list[str]
    out_of_corpus: list[Passage]
    outside: int
    with_negatives: int

    def __len__(self) -> int:
        return len(self.query_ids)

    def pairs(self, topic: int) -> slice:
        """The places of a topic's positives in `rows` and `docids`."""
        return slice(int(self.starts[topic]), int(self.starts[topic + 1]))

    def topic_of_pair(self) -> np.ndarray:
        """int64 [pairs]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def read_topics(groups: Records[Group], docids: Docids) -> Topics:
    """Read the groups once. Raises UserError when no group has a positive in the corpus or with a text of its own."""
    numbers: dict[tuple[str, str], int] = {}
    positives: list[dict[str, int]] = []
    of_group = array("i")
    out_of_corpus: dict[str, Passage] = {}
    stray_rows: dict[str, int] = {}
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
                rows[docid] = stray_rows.setdefault(docid, len(docids) + len(stray_rows))
        if not rows:
            of_group.append(-1)
            continue
        number = numbers.setdefault((group.query_id, group.query), len(numbers))
        if number == len(positives):
            positives.append({})
        positives[number].update(rows)
        of_group.append(number)
    if not numbers:
        raise UserError(
            f"no positive of {groups.name} is in the corpus", "give the corpus that the groups or qrels were made for"
        )
    return Topics(
        [query_id for query_id, _ in numbers],
        [text for _, text in numbers],
        np.array(of_group, np.int32),
        np.cumsum([0, *map(len, positives)]),
        np.array([row for own in positives for row in own.values()], np.int64),
        [docid for own in positives for docid in own],
        list(out_of_corpus.values()),
        outside,
        with_negatives,
    )
