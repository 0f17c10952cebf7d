"""From candidates to the rows that training reads."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Group, Passage, Records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.candidates import Candidates
from starbucks_retrieval.mine.filters import are_near, choose, generator, words
from starbucks_retrieval.mine.passages import PassageFile
from starbucks_retrieval.mine.teacher import Teacher
from starbucks_retrieval.mine.topics import Topics

_WINDOW = 8192  # pairs that a teacher scores at once, sorted by length among themselves


def write_rows(
    arguments: MineArguments,
    seed: int,
    groups: Records[Group],
    corpus: Records[Passage],
    topics: Topics,
    candidates: Candidates,
    corpus_length: int,
    teacher: Teacher | None = None,
) -> tuple[Counter[str], Counter[str]]:
    """Write a row for every group, in order, whole or not at all, with the teacher's scores where there is one.

    Returns counts of what happened, and of what each filter dropped.
    """
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    needed = np.zeros(corpus_length + 1, bool)  # one place more, for the -1 after the last candidate
    needed[topics.rows[topics.rows < corpus_length]] = True
    for rows in candidates.rows:
        needed[rows] = True
    with PassageFile(corpus, np.flatnonzero(needed[:-1]), corpus_length, arguments.output.parent) as passages:
        maker = _Maker(arguments, seed, topics, candidates, corpus_length, passages, counts, dropped)
        with atomic_writer(arguments.output) as out:
            rows = maker.rows(groups, quiet=teacher is not None)
            for row in scored(rows, teacher, int((topics.of_group >= 0).sum())) if teacher else rows:
                out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    return counts, dropped


@dataclasses.dataclass(frozen=True)
class _Maker:
    arguments: MineArguments
    seed: int
    topics: Topics
    candidates: Candidates
    corpus_length: int
    passages: PassageFile
    counts: Counter[str]
    dropped: Counter[str]

    def rows(self, groups: Records[Group], quiet: bool) -> Iterator[dict[str, Any]]:
        """A row for every group, progress being shown unless `quiet`."""
        of_group = self.topics.of_group.tolist()
        numbered: Iterable[tuple[Group, int]] = zip(groups, of_group)
        for group, topic in numbered if quiet else progress(numbered, len(of_group), "queries", "choosing negatives"):
            if topic < 0:
                self.counts["left_out"] += 1
            else:
                yield self.row(group, topic)

    def row(self, group: Group, topic: int) -> dict[str, Any]:
        """One Tevatron row."""
        pairs = self.topics.pairs(topic)
        rows, scores = self.candidates.rows[topic], self.candidates.scores[topic]
        positive_rows, positive_scores = self.topics.rows[pairs], self.candidates.positive_scores[pairs]
        texts = dict(zip(self.topics.docids[pairs], map(self._known, positive_rows.tolist())))
        own = [self._own(group, docid, texts[docid]) for docid in group.positive_ids if docid in texts]
        near = {words(passage) for passage in (*texts.values(), *own)}

        def is_duplicate(row: int) -> bool:
            found = words(self.passages[row])
            return any(are_near(found, other, self.arguments.duplicate_threshold) for other in near)

        chosen, dropped = choose(
            rows,
            scores,
            positive_rows,
            self._lowest(positive_scores),
            window=self.arguments.window,
            margin=self.arguments.margin,
            ratio=self.arguments.ratio,
            wanted=self.arguments.num_negatives,
            sampling=self.arguments.sampling,
            rng=generator(self.seed, group.query_id),
            is_duplicate=is_duplicate,
        )
        self.dropped.update(dropped)
        self.counts.update(queries=1, negatives=len(chosen), without_negatives=int(not len(chosen)))
        row: dict[str, Any] = {
            "query_id": group.query_id,
            "query": group.query,
            "positive_passages": [dataclasses.asdict(passage) for passage in own],
            "negative_passages": [dataclasses.asdict(self.passages[i]) for i in rows[chosen].tolist()],
        }
        if self.arguments.save_scores:
            known = dict(zip(texts, positive_scores.tolist()))
            row["positive_scores"] = [_number(known[passage.docid]) for passage in own]
            row["negative_scores"] = [_number(score) for score in scores[chosen].tolist()]
        return row

    def _known(self, row: int) -> Passage:
        return self.passages[row] if row < self.corpus_length else self.topics.out_of_corpus[row - self.corpus_length]

    def _own(self, group: Group, docid: str, known: Passage) -> Passage:
        """The positive as its group has it, else as the corpus has it."""
        if group.passages is None:
            return known
        self.counts["other_text"] += words(group.passages[docid]) != words(known)
        return group.passages[docid]

    def _lowest(self, positive_scores: np.ndarray) -> float | None:
        scores = positive_scores[~np.isnan(positive_scores)]
        lowest = float(scores.min()) if len(scores) else None
        useless = lowest is None or (self.arguments.ratio is not None and lowest <= 0)
        self.counts["without_positive_score"] += useless
        return lowest


def scored(rows: Iterable[dict[str, Any]], teacher: Teacher, count: int) -> Iterator[dict[str, Any]]:
    """The `count` rows with the teacher's scores in place of others. Raises UserError for a score that is no number."""
    start = 0
    for window in _windows(rows):
        stop = start + len(window)
        pairs = [
            (row["query"], Passage(**passage))
            for row in window
            for passage in (*row["positive_passages"], *row["negative_passages"])
        ]
        scores = teacher.score(pairs, f"teacher's scores for queries {start + 1} to {stop} of {count}")
        if not np.isfinite(scores).all():
            raise UserError("the teacher's scores hold NaN or infinity", "check the model and --dtype")
        numbers = map(_number, scores.tolist())
        for row in window:
            for side in ("positive", "negative"):
                row[f"{side}_scores"] = list(islice(numbers, len(row[f"{side}_passages"])))
            yield row
        start = stop


def _windows(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Whole rows of at least `_WINDOW` pairs together, but for the last."""
    window: list[dict[str, Any]] = []
    pairs = 0
    for row in rows:
        window.append(row)
        pairs += len(row["positive_passages"]) + len(row["negative_passages"])
        if pairs >= _WINDOW:
            yield window
            window, pairs = [], 0
    if window:
        yield window


def _number(score: float) -> float | None:
    """A float32 in the nine digits that tell it apart; None for an unknown one."""
    return None if math.isnan(score) else float(f"{score:.9g}")
