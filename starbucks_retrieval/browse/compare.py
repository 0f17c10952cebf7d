"""The results of several runs for each query, and what a run gains and loses against the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starbucks_retrieval.metrics.measures import Qrels, Run, trec_order

EQUAL = 5e-5  # the page does not show a smaller difference


@dataclass(frozen=True)
class ComparedHit:
    """One passage in the results of a run.

    Args:
        docid: Its id.
        rank: Its rank in the whole run, from 1; None if the run does not have it.
        score: Its score in the run, or None.
        grade: Its judged grade, or None.
        before: Its rank in the whole first run, or None.
    """

    docid: str
    rank: int | None
    score: float | None
    grade: int | None
    before: int | None


@dataclass(frozen=True)
class RankedList:
    """The first passages of one run for one query, best first, compared with those of the first run.

    Args:
        hits: The passages.
        value: The measure; None without judgements.
        change: `value` less that of the first run; None without judgements.
        gained: How many relevant passages the first run's list does not have.
        lost: The relevant passages that only the first run's list has.
        shared: How many passages both lists have.
        relevant: How many passages are relevant.
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
        """The fraction of the passages that the first run's list has too; 1 for an empty list."""
        return self.shared / len(self.hits) if self.hits else 1.0


@dataclass(frozen=True)
class QueryComparison:
    """The results of all runs for one query.

    Args:
        query_id: The id of the query.
        results: One list for each run.
        relevant: How many relevant passages are judged.
        missed: Relevant passages that no list has; each as one hit for each run.
    """

    query_id: str
    results: list[RankedList]
    relevant: int
    missed: list[list[ComparedHit]]

    @property
    def docids(self) -> set[str]:
        """The ids of all passages that a page shows for this query."""
        shown = {hit.docid for result in self.results for hit in (*result.hits, *result.lost)}
        return shown | {hits[0].docid for hits in self.missed}

    @property
    def max_change(self) -> tuple[float, float]:
        """The largest difference to the first run: of the measure, and of the passages (0 equal, 1 disjoint)."""
        changes = [abs(result.change or 0.0) for result in self.results[1:]]
        distances = [1 - result.share for result in self.results[1:]]
        return max(changes, default=0.0), max(distances, default=0.0)


@dataclass(frozen=True)
class RunSummary:
    """One run over all queries, compared with the first run.

    Args:
        mean: The mean of the measure; None without judgements.
        better: In how many queries the run is better.
        worse: In how many queries it is worse.
        relevant: How many relevant passages its lists have.
        gained: How many of them the first run's lists do not have.
        lost: How many relevant passages only the first run's lists have.
        values: The measure of each query, largest first.
        changes: The changes of each query, largest first.
        shared: The mean fraction of passages that the first run's lists have too.
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


def compare_runs(
    runs: Sequence[Run],
    query_ids: Iterable[str],
    qrels: Qrels | None = None,
    values: Sequence[Mapping[str, float]] | None = None,
    *,
    depth: int = 10,
    relevance: int = 1,
    missed: int = 3,
) -> list[QueryComparison]:
    """Compare runs query by query with the first of them.

    Args:
        runs: Scores by query id and passage id.
        query_ids: The queries to compare.
        qrels: Judged grades by query id and passage id.
        values: The measure of each run, by query id.
        depth: How many passages of each run count.
        relevance: The grade from which a passage counts as relevant.
        missed: How many relevant passages to keep that no run has in its first `depth`; those of highest grade.

    Example:
        >>> runs = [{"q": {"a": 2.0, "b": 1.0}}, {"q": {"c": 2.0, "a": 1.0}}]
        >>> query, = compare_runs(runs, ["q"], {"q": {"c": 1}})
        >>> [hit.docid for hit in query.results[1].hits], query.results[1].gained
        (['c', 'a'], 1)
    """
    found = []
    for query_id in query_ids:
        grades = (qrels or {}).get(query_id, {})
        scores = [run.get(query_id, {}) for run in runs]
        measured = [column.get(query_id, 0.0) for column in values] if values else None
        found.append(_compare_query(query_id, scores, grades, measured, depth, relevance, missed))
    return found


def _compare_query(
    query_id: str,
    scores: Sequence[Mapping[str, float]],
    grades: Mapping[str, int],
    values: Sequence[float] | None,
    depth: int,
    relevance: int,
    most_missed: int,
) -> QueryComparison:
    orders = [trec_order(found) for found in scores]
    ranks = [{docid: rank for rank, docid in enumerate(order, 1)} for order in orders]

    def hit(column: int, docid: str) -> ComparedHit:
        score = scores[column].get(docid)
        return ComparedHit(docid, ranks[column].get(docid), score, grades.get(docid), ranks[0].get(docid))

    relevant = {docid for docid, grade in grades.items() if grade >= relevance}
    lists = [order[:depth] for order in orders]
    first = set(lists[0])
    results = []
    for column, docids in enumerate(lists):
        here = set(docids)
        results.append(
            RankedList(
                hits=[hit(column, docid) for docid in docids],
                value=values[column] if values else None,
                change=values[column] - values[0] if values else None,
                gained=len(relevant & (here - first)),
                lost=[hit(column, docid) for docid in lists[0] if docid in relevant and docid not in here],
                shared=len(here & first),
                relevant=len(relevant & here),
            )
        )
    shown = {docid for docids in lists for docid in docids}
    unseen = sorted((docid for docid in grades if docid in relevant - shown), key=lambda docid: -grades[docid])
    missed = [[hit(column, docid) for column in range(len(scores))] for docid in unseen[:most_missed]]
    return QueryComparison(query_id, results, len(relevant), missed)


def summarize_runs(queries: Sequence[QueryComparison], run_count: int) -> list[RunSummary]:
    """Return the figures of each run over all queries.

    Args:
        queries: What `compare_runs` returned.
        run_count: How many runs were compared.

    Returns:
        One summary for each run, in the order of the runs. The first run is compared with itself.

    Example:
        >>> compared = compare_runs([{"q": {"a": 1.0}}, {"q": {"b": 1.0}}], ["q"], {"q": {"b": 1}})
        >>> [(summary.gained, summary.relevant) for summary in summarize_runs(compared, 2)]
        [(0, 0), (1, 1)]
    """
    found = []
    for column in range(run_count):
        results = [query.results[column] for query in queries]
        values = sorted((result.value for result in results if result.value is not None), reverse=True)
        changes = sorted((result.change for result in results if result.change is not None), reverse=True)
        found.append(
            RunSummary(
                mean=sum(values) / len(values) if values else None,
                better=sum(change > EQUAL for change in changes),
                worse=sum(change < -EQUAL for change in changes),
                relevant=sum(result.relevant for result in results),
                gained=sum(result.gained for result in results),
                lost=sum(len(result.lost) for result in results),
                values=values,
                changes=changes,
                shared=sum(result.share for result in results) / max(1, len(results)),
            )
        )
    return found
