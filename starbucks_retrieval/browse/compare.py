"""What every run found for a query, and what it gained and lost against the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starbucks_retrieval.metrics.measures import Qrels, Run, trec_order

EQUAL = 5e-5  # differences that four digits do not show


@dataclass(frozen=True)
class ComparedHit:
    """A passage in an answer: its `rank` from 1, its judged `grade` or None, and its rank `before`, in the first run.

    Ranks are those in the whole run, so they may lie beyond what is shown; None: the run does not have it.
    """

    docid: str
    rank: int | None
    score: float | None
    grade: int | None
    before: int | None


@dataclass(frozen=True)
class RankedList:
    """The first passages that one run found for a query, best first.

    `value` is the measure, `change` the difference to the first run's; None without judgements. `gained` counts the
    relevant passages among `hits` that the first run's have not; `lost` are those of the first run's hits that this
    one's have not. `shared` counts the passages that both have.
    """

    hits: list[ComparedHit]
    value: float | None
    change: float | None
    gained: int
    lost: list[ComparedHit]
    shared: int
    relevant: int

    @property
    def share(self) -> float:
        """Part of the passages that the first run has too; of none, all."""
        return self.shared / len(self.hits) if self.hits else 1.0


@dataclass(frozen=True)
class QueryComparison:
    """A query with an answer a run. `relevant` counts its relevant passages; `missed` are those that no run shows."""

    query_id: str
    answers: list[RankedList]
    relevant: int
    missed: list[list[ComparedHit]]

    @property
    def docids(self) -> set[str]:
        """All passages that a page of this query shows."""
        shown = {hit.docid for answer in self.answers for hit in (*answer.hits, *answer.lost)}
        return shown | {row[0].docid for row in self.missed}

    @property
    def max_change(self) -> tuple[float, float]:
        """How much the runs differ: by the measure, then by the passages that they do not share."""
        changes = [abs(answer.change or 0.0) for answer in self.answers[1:]]
        apart = [1 - answer.share for answer in self.answers[1:]]
        return max(changes, default=0.0), max(apart, default=0.0)


@dataclass(frozen=True)
class RunSummary:
    """One run over all queries: the measure's mean, and against the first run in how many queries it is better or worse.

    `values` and `changes` are those of single queries, largest first; `relevant`, `gained` and `lost` count passages.
    """

    mean: float | None
    better: int
    worse: int
    relevant: int
    gained: int
    lost: int
    values: list[float]
    changes: list[float]
    shared: float


def compare(
    runs: Sequence[Run],
    query_ids: Iterable[str],
    qrels: Qrels | None = None,
    values: Sequence[Mapping[str, float]] | None = None,
    *,
    depth: int = 10,
    relevance: int = 1,
    missed: int = 3,
) -> list[QueryComparison]:
    """One Question for each of `query_ids`, with an answer of each run; the first run is what others are compared to.

    `values` holds each run's measure by query id. A passage counts as relevant from grade `relevance` on; of those
    that no run shows, the `missed` of highest grade are kept.
    """
    return [_question(query_id, runs, qrels, values, depth, relevance, missed) for query_id in query_ids]


def _question(
    query_id: str,
    runs: Sequence[Run],
    qrels: Qrels | None,
    values: Sequence[Mapping[str, float]] | None,
    depth: int,
    relevance: int,
    most: int,
) -> QueryComparison:
    grades = (qrels or {}).get(query_id, {})
    results = [run.get(query_id, {}) for run in runs]
    orders = [trec_order(found) for found in results]
    ranks = [{docid: rank for rank, docid in enumerate(order, 1)} for order in orders]

    def hit(column: int, docid: str) -> ComparedHit:
        score = results[column].get(docid)
        return ComparedHit(docid, ranks[column].get(docid), score, grades.get(docid), ranks[0].get(docid))

    good = [docid for docid, grade in grades.items() if grade >= relevance]
    tops = [order[:depth] for order in orders]
    base = set(tops[0])
    answers = []
    for column, top in enumerate(tops):
        own = set(top)
        value = values[column].get(query_id, 0.0) if values else None
        change = value - values[0].get(query_id, 0.0) if values and value is not None else None
        answers.append(
            RankedList(
                hits=[hit(column, docid) for docid in top],
                value=value,
                change=change,
                gained=sum(docid in own and docid not in base for docid in good),
                lost=[
                    hit(column, docid)
                    for docid in tops[0]
                    if grades.get(docid, relevance - 1) >= relevance and docid not in own
                ],
                shared=len(own & base),
                relevant=sum(docid in own for docid in good),
            )
        )
    shown = {docid for top in tops for docid in top}
    unseen = sorted((docid for docid in good if docid not in shown), key=lambda docid: -grades[docid])
    never = [[hit(column, docid) for column in range(len(runs))] for docid in unseen[:most]]
    return QueryComparison(query_id, answers, len(good), never)


def run_summaries(questions: Sequence[QueryComparison], columns: int) -> list[RunSummary]:
    """Each run over all questions."""
    found = []
    for column in range(columns):
        answers = [question.answers[column] for question in questions]
        values = sorted((answer.value for answer in answers if answer.value is not None), reverse=True)
        changes = sorted((answer.change for answer in answers if answer.change is not None), reverse=True)
        found.append(
            RunSummary(
                mean=sum(values) / len(values) if values else None,
                better=sum(change > EQUAL for change in changes),
                worse=sum(change < -EQUAL for change in changes),
                relevant=sum(answer.relevant for answer in answers),
                gained=sum(answer.gained for answer in answers),
                lost=sum(len(answer.lost) for answer in answers),
                values=values,
                changes=changes,
                shared=sum(answer.share for answer in answers) / max(1, len(answers)),
            )
        )
    return found
