"""Choose negatives from candidates and write training rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.cli import progress
from starbucks_retrieval.data import Group, Passage, Records
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import BeforeRename, atomic_writer
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.candidates import Candidates
from starbucks_retrieval.mine.topics import PassageFile, Topics

if TYPE_CHECKING:
    from starbucks_retrieval.mine.teacher import Teacher

_WORD = re.compile(r"\w+")
_WINDOW = 8192  # pairs that a teacher scores at once, sorted by length among themselves


def query_generator(seed: int, query_id: str) -> np.random.Generator:
    """Return the random generator of one query, independent of the other queries and of their order.

    Args:
        seed: Seed of the whole job.
        query_id: Id of the query. Equal seeds and ids give the same random numbers.

    Example:
        >>> first, again, other = (query_generator(42, name).integers(10**9) for name in ("q1", "q1", "q2"))
        >>> bool(first == again), bool(first == other)
        (True, False)
    """
    digest = hashlib.blake2b(query_id.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])


def choose_negatives(
    rows: np.ndarray,
    scores: np.ndarray,
    positives: np.ndarray,
    lowest: float | None,
    arguments: MineArguments,
    rng: np.random.Generator,
    is_duplicate: Callable[[int], bool],
) -> tuple[np.ndarray, Counter[str]]:
    """Choose the negatives of one query among its candidates.

    The limits relative to the positive's score are TopK-MarginPos and TopK-PercPos of NV-Retriever (arXiv 2407.15831,
    section 3).

    Args:
        rows: [depth], corpus rows, best first, -1 after the last.
        scores: [depth].
        positives: Rows that are never chosen.
        lowest: The lowest score of a positive. If it is unknown, margin and ratio drop nothing; nor does a ratio of a
            score that is not above 0.
        arguments: The flags of the filters.
        rng: Generator of the random draws.
        is_duplicate: Called with rows in the order of drawing, until there are enough negatives.

    Returns:
        Ascending positions in `rows`, and how many candidates each filter dropped.
    """
    dropped: Counter[str] = Counter()
    listed = np.flatnonzero(rows >= 0)
    ranked = listed[~np.isin(rows[listed], positives)]
    dropped["positives"] = len(listed) - len(ranked)
    first, last = arguments.window
    inside = ranked[first - 1 : last]
    dropped["range"] = len(ranked) - len(inside)
    limits: dict[str, float] = {}
    if arguments.margin is not None and lowest is not None:
        limits["margin"] = lowest - arguments.margin
    if arguments.ratio is not None and lowest is not None and lowest > 0:
        limits["ratio"] = arguments.ratio * lowest
    for name, limit in limits.items():
        kept = inside[scores[inside] <= limit]
        dropped[name], inside = len(inside) - len(kept), kept
    chosen: list[int] = []
    for position in rng.permutation(inside) if arguments.sampling == "random" else inside:
        if len(chosen) == arguments.num_negatives:
            break
        if is_duplicate(int(rows[position])):
            dropped["duplicates"] += 1
        else:
            chosen.append(int(position))
    return np.array(sorted(chosen), np.int64), dropped


def word_set(passage: Passage) -> frozenset[str]:
    """Return the distinct case-folded words of the text, or of the title if there is no text.

    Example:
        >>> sorted(word_set(Passage("d1", "a title", "To be, or not to be")))
        ['be', 'not', 'or', 'to']
    """
    return frozenset(_WORD.findall((passage.text.strip() or passage.title).casefold()))


def near_duplicates(a: frozenset[str], b: frozenset[str], threshold: float) -> bool:
    """Return whether the Jaccard similarity |a ∩ b| / |a ∪ b| is at least `threshold`; two empty sets are equal.

    Example:
        >>> near_duplicates(frozenset("abc"), frozenset("abcd"), 0.75)
        True
    """
    if min(len(a), len(b)) < threshold * max(len(a), len(b)):
        return False
    shared = len(a & b)
    return shared >= threshold * (len(a) + len(b) - shared)


def write_rows(
    arguments: MineArguments,
    seed: int,
    groups: Records[Group],
    corpus: Records[Passage],
    topics: Topics,
    candidates: Candidates,
    corpus_length: int,
    teacher: Teacher | None = None,
    before_rename: BeforeRename | None = None,
) -> tuple[Counter[str], Counter[str]]:
    """Write one training row per group, in order; the file appears only when it is complete.

    Args:
        arguments: Flags of the filters and the output.
        seed: Seeds the random choice of negatives.
        groups: Training groups, in the order in which `topics` read them.
        corpus: Passages.
        topics: Queries and their positives.
        candidates: Ranked passages of each topic.
        corpus_length: Number of passages of the corpus.
        teacher: Replaces the candidates' scores in the rows, if given.
        before_rename: As for `files.atomic_writer`.

    Returns:
        Counts of rows and warnings, and counts of the candidates that each filter dropped.
    """
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    needed = np.zeros(corpus_length + 1, bool)  # one element more, for the -1 after the last candidate
    needed[topics.rows[topics.rows < corpus_length]] = True
    for rows in candidates.rows:
        needed[rows] = True
    with PassageFile(corpus, np.flatnonzero(needed[:-1]), corpus_length, arguments.output.parent) as passages:
        maker = _RowMaker(arguments, seed, topics, candidates, corpus_length, passages, counts, dropped)
        with atomic_writer(arguments.output, before_rename=before_rename) as out:
            rows = maker.rows(groups, quiet=teacher is not None)
            for row in with_teacher_scores(rows, teacher, int((topics.topic_of_group >= 0).sum())) if teacher else rows:
                out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    return counts, dropped


@dataclasses.dataclass(frozen=True)
class _RowMaker:
    arguments: MineArguments
    seed: int
    topics: Topics
    candidates: Candidates
    corpus_length: int
    passages: PassageFile
    counts: Counter[str]
    dropped: Counter[str]

    def rows(self, groups: Records[Group], quiet: bool) -> Iterator[dict[str, Any]]:
        """One row per group, with a progress bar unless `quiet`."""
        topic_of_group = self.topics.topic_of_group.tolist()
        numbered: Iterable[tuple[Group, int]] = zip(groups, topic_of_group)
        for group, topic in (
            numbered if quiet else progress(numbered, len(topic_of_group), "queries", "choosing negatives")
        ):
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
        positives = [self._positive(group, docid, texts[docid]) for docid in group.positive_ids if docid in texts]
        positive_words = {word_set(passage) for passage in (*texts.values(), *positives)}

        def is_duplicate(row: int) -> bool:
            found = word_set(self.passages[row])
            return any(near_duplicates(found, other, self.arguments.duplicate_threshold) for other in positive_words)

        lowest, rng = self._lowest(positive_scores), query_generator(self.seed, group.query_id)
        chosen, dropped = choose_negatives(rows, scores, positive_rows, lowest, self.arguments, rng, is_duplicate)
        self.dropped.update(dropped)
        self.counts.update(queries=1, negatives=len(chosen), without_negatives=int(not len(chosen)))
        row: dict[str, Any] = {
            "query_id": group.query_id,
            "query": group.query,
            "positive_passages": [dataclasses.asdict(passage) for passage in positives],
            "negative_passages": [dataclasses.asdict(self.passages[i]) for i in rows[chosen].tolist()],
        }
        if self.arguments.save_scores:
            known = dict(zip(texts, positive_scores.tolist()))
            row["positive_scores"] = [_number(known[passage.docid]) for passage in positives]
            row["negative_scores"] = [_number(score) for score in scores[chosen].tolist()]
        return row

    def _known(self, row: int) -> Passage:
        return self.passages[row] if row < self.corpus_length else self.topics.out_of_corpus[row - self.corpus_length]

    def _positive(self, group: Group, docid: str, known: Passage) -> Passage:
        """The positive with the text of its group, or that of the corpus if the group has none."""
        if group.passages is None:
            return known
        self.counts["other_text"] += word_set(group.passages[docid]) != word_set(known)
        return group.passages[docid]

    def _lowest(self, positive_scores: np.ndarray) -> float | None:
        scores = positive_scores[~np.isnan(positive_scores)]
        lowest = float(scores.min()) if len(scores) else None
        self.counts["without_positive_score"] += lowest is None or (self.arguments.ratio is not None and lowest <= 0)
        return lowest


def with_teacher_scores(rows: Iterable[dict[str, Any]], teacher: Teacher, count: int) -> Iterator[dict[str, Any]]:
    """Yield the rows with the teacher's scores in place of the candidates'.

    Args:
        rows: Rows with `query`, `positive_passages` and `negative_passages`. They are changed in place.

    Raises:
        UserError: While iterating: a score is NaN or infinite.
    """
    start = 0
    for window in _score_windows(rows):
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


def _score_windows(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Lists of rows with at least `_WINDOW` pairs together, except the last list."""
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
    """A float32 with the nine digits that identify it; None for NaN."""
    return None if math.isnan(score) else float(f"{score:.9g}")
