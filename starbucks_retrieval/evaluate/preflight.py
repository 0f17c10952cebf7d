"""Checks of a run and its judgements before the figures are reported.

A published table once had 0.02 beside 0.84 for one data set. Two causes would explain it, and neither was ruled out: a
truncated run file (the queries without results are the last ones), and hub documents (the same few in every top ten). The
preflight distinguishes them. The reader of runs already refuses a document that occurs twice for a query, and reports
what only a file can have: ranks that contradict scores, and results of a query in several places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from starbucks_retrieval.metrics.measures import Qrels, Run, trec_top

TOP = 10
HUB_SHARE = 0.1  # of all top tens; a document in fewer is never a hub
HUB_ODDS = 5  # a hub has more than this many times the odds of the average document
HUB_CHANCE = 0.01  # probability that sampling the queries makes a hub of any document of a collection
HUB_QUERIES = 20  # with fewer queries, one document in two top tens means nothing
COMMON = 0.05  # share of queries from which ids or ranks are wrong by more than accident
SAMPLE = 5  # ids in a finding
SELF_RANK = 3  # a query that is a document of the corpus finds this document at the top

_WRITE_AGAIN = "the run file looks truncated: write it again and check that the disk is not full"

Tops = Mapping[str, list[tuple[float, str]]]  # query id → (score, docid) of its best results, best first


@dataclass(frozen=True)
class Finding:
    """A defect of a run or of judgements.

    Attributes:
        kind: Name of the check.
        what: The problem, in one line.
        remedy: What to do, in one line.
        count: Number of queries, documents, scores or grades concerned.
        sample: The first ids of them.
        serious: Whether it makes the figures wrong or not comparable.
    """

    kind: str
    what: str
    remedy: str
    count: int
    sample: tuple[str, ...]
    serious: bool


def preflight(
    run: Run,
    qrels: Qrels,
    query_order: Sequence[str] | None = None,
    *,
    misranked: Sequence[str] = (),
    scattered: Sequence[str] = (),
    documents: int | None = None,
) -> list[Finding]:
    """Check a run against judgements.

    Args:
        run: query id → docid → score.
        qrels: query id → docid → grade.
        query_order: The queries in the order in which they were searched. Missing queries that are the last of it, or the
            last of `qrels`, mean a truncated run.
        misranked: Queries whose rank column contradicts the scores, as `open_run` reports them.
        scattered: Queries whose results are in several places of the file, as `open_run` reports them.
        documents: Size of the corpus; by default the number of documents that the run or `qrels` name.

    Returns:
        The findings; none if the run looks sound.

    Example:
        >>> run, qrels = {"q1": {"d1": 1.0}}, {"q1": {"d1": 1}, "q2": {"d2": 1}}
        >>> [(finding.kind, finding.sample) for finding in preflight(run, qrels)]
        [('truncated_run', ('q2',))]
    """
    documents = documents or len({docid for lists in (run, qrels) for one in lists.values() for docid in one})
    # One more than the top ten: a tie across the cut decides who is in.
    tops = {query_id: trec_top(ranking, TOP + 1) for query_id, ranking in run.items()}
    found = [
        _missing(run, qrels, query_order),
        _unjudged(run, qrels),
        _non_finite(run),
        _tied(tops),
        _misranked(run, misranked),
        _scattered(run, scattered),
        _hubs(tops, qrels, documents),
        _identical(run, tops),
        _other_corpus(run, qrels),
    ]
    return [finding for finding in found if finding]


def preflight_qrels(qrels: Qrels) -> list[Finding]:
    """Check judgements, independently of any run: negative grades, and queries without a relevant document.

    Example:
        >>> [(finding.kind, finding.count) for finding in preflight_qrels({"q": {"d": 0}})]
        [('nothing_relevant', 1)]
    """
    return [finding for finding in (_negative(qrels), _nothing_relevant(qrels)) if finding]


def _missing(run: Run, qrels: Qrels, query_order: Sequence[str] | None) -> Finding | None:
    missing = [query_id for query_id in qrels if not run.get(query_id)]
    if not missing:
        return None
    what = f"{len(missing)} of {len(qrels)} judged queries have no results and score 0"
    evidence = _cut_off(run, qrels, set(missing), query_order)
    if evidence:
        return Finding("truncated_run", f"{what}; {evidence}", _WRITE_AGAIN, len(missing), _sample(missing), True)
    remedy = "search these queries too, or use the qrels of the queries that were searched"
    return Finding("missing_queries", f"{what}: {_list(missing)}", remedy, len(missing), _sample(missing), True)


def recognise_truncation(
    finding: Finding, query_ids: Collection[str], qrels: Qrels, orders: Mapping[str, Sequence[str]]
) -> Finding:
    """Return a finding of missing queries as one of a truncated run, if these queries are the last of another run.

    Args:
        finding: Any finding; others than `missing_queries` are returned unchanged.
        query_ids: The queries of the run.
        qrels: The judgements.
        orders: The queries of the other runs, by name, in the order of their files.
    """
    missing = {query_id for query_id in qrels if query_id not in query_ids}
    for name, order in orders.items() if finding.kind == "missing_queries" and missing else ():
        judged = [query_id for query_id in order if query_id in qrels]
        if len(judged) > len(missing) and set(judged[-len(missing) :]) == missing:
            what = f"{finding.what}; they are the last of {name}"
            return replace(finding, kind="truncated_run", what=what, remedy=_WRITE_AGAIN)
    return finding


def _cut_off(run: Run, qrels: Qrels, missing: set[str], query_order: Sequence[str] | None) -> str:
    """Return the evidence that the run is truncated; empty if there is none."""
    judged_in_order = [query_id for query_id in query_order or () if query_id in qrels]
    for name, order in (("queries", judged_in_order), ("qrels", list(qrels))):
        if len(missing) < len(qrels) and set(order[-len(missing) :]) == missing:
            return f"they are the last of the {name}"
    depths = [len(ranking) for ranking in run.values() if ranking]
    if len(depths) > 2 and len(set(depths[:-1])) == 1 and depths[-1] < depths[0]:
        return f"the last query in the run has {depths[-1]} results, every other one {depths[0]}"
    return ""


def _unjudged(run: Run, qrels: Qrels) -> Finding | None:
    unjudged = [query_id for query_id in run if query_id not in qrels]
    what = f"{len(unjudged)} of {len(run)} queries in the run are not judged and count for nothing: {_list(unjudged)}"
    remedy = "nothing to do if the qrels judge a part of the topics; otherwise check the qrels and --split"
    return _finding("unjudged_queries", what, remedy, unjudged)


def _non_finite(run: Run) -> Finding | None:
    bad = {
        query_id: sum(not np.isfinite(value) for value in ranking.values())
        for query_id, ranking in run.items()
        if not np.isfinite(sum(ranking.values()))  # any NaN or infinity survives a sum
    }
    bad = {query_id: count for query_id, count in bad.items() if count}
    total = sum(bad.values())
    what = f"{total} scores in {len(bad)} queries are NaN or infinite and rank below every other: {_list(bad)}"
    remedy = "encode again: a vector overflowed; try --dtype fp32 or --store_dtype float32"
    return _finding("non_finite_scores", what, remedy, bad, True, total)


def _tied(tops: Tops) -> Finding | None:
    # NaN and infinite scores are equal to trec_eval, and another finding.
    scores = {query_id: [score for score, _ in top if np.isfinite(score)] for query_id, top in tops.items()}
    tied = [query_id for query_id, top in scores.items() if len(set(top)) < len(top)]
    # Half-precision scores tie often and shift a measure by thousandths; without distinct scores there is no ranking.
    flat = sum(len(top) > 1 and top[0] == top[-1] for top in scores.values())
    what = f"{len(tied)} of {len(tops)} queries have tied scores in the top {TOP}, ordered by docid: {_list(tied)}"
    remedy = "write scores with more digits; tools that break ties differently give other figures"
    if 2 * flat > len(tops):
        what += f"; in {flat} of them all scores are equal"
    return _finding("tied_scores", what, remedy, tied, 2 * flat > len(tops))


def _misranked(run: Run, misranked: Sequence[str]) -> Finding | None:
    what = (
        f"in {len(misranked)} of {len(run)} queries the rank column contradicts the scores, which count here as in "
        f"trec_eval: {_list(misranked)}"
    )
    remedy = "if the ranks are right, write scores that fall with the rank; tools that read ranks give other figures"
    serious = len(misranked) >= COMMON * len(run)
    return _finding("misranked_queries", what, remedy, misranked, serious)


def _scattered(run: Run, scattered: Sequence[str]) -> Finding | None:
    what = (
        f"the results of {len(scattered)} of {len(run)} queries are in more than one place of the file and are "
        f"merged: {_list(scattered)}"
    )
    remedy = "nothing to do if parts of one corpus were searched separately; otherwise two runs were joined by mistake"
    return _finding("scattered_queries", what, remedy, scattered)


def _hubs(tops: Tops, qrels: Qrels, documents: int) -> Finding | None:
    """Find documents that are in more top tens than chance and relevance explain.

    The average document is in a share of 10 / `documents` of the top tens, and topics make some more popular than others.
    The limit is 5 times the average's odds, and at least a tenth of the top tens. A document is a hub if its count,
    without the queries that it is relevant for, has a probability below 0.01 / `documents` for a true share at the limit
    (binomial: each query is one trial).
    """
    if len(tops) < HUB_QUERIES:
        return None
    docids = {query_id: [docid for _, docid in top[:TOP]] for query_id, top in tops.items()}
    counts = Counter(docid for top in docids.values() for docid in top)
    relevant = Counter(
        docid for query_id, top in docids.items() for docid in top if qrels.get(query_id, {}).get(docid, 0) > 0
    )
    average = min(1.0, counts.total() / len(tops) / max(documents, 1))
    limit = max(HUB_SHARE, HUB_ODDS * average / (1 - average + HUB_ODDS * average))
    excess = {docid: count - relevant[docid] for docid, count in counts.items()}
    over = {docid: count for docid, count in excess.items() if count > limit * len(tops)}
    if not over:
        return None
    from scipy.stats import binom

    likely = [docid for docid, n in over.items() if binom.sf(n - 1, len(tops), limit) * documents < HUB_CHANCE]
    hubs = sorted(likely, key=lambda docid: -excess[docid])
    if not hubs:
        return None
    what = (
        f"in more of the top tens than chance and relevance explain: {_list(hubs)}; {hubs[0]} alone in {counts[hubs[0]]} of "
        f"{len(tops)} and judged relevant in {relevant[hubs[0]]} of those; up to {limit:.0%} is normal"
    )
    remedy = "read them: text without content (drop them from the corpus), or a size that was not trained"
    if any(score > 1.01 for top in tops.values() for score, _ in top[:1]):  # not cosines
        remedy = "read them: text without content, or a vector of huge norm; drop them, or train with --normalize"
    return _finding("hub_documents", what, remedy, hubs, True)


def _identical(run: Run, tops: Tops) -> Finding | None:
    same = [query_id for query_id, ranking in run.items() if query_id in ranking]
    what = f"{len(same)} of {len(run)} queries retrieve a document of their own id: {_list(same)}"
    # A query that is a document finds itself first. Where both are only numbered from 1, that document may have any rank.
    found_first = sum(any(docid == query_id for _, docid in tops[query_id][:SELF_RANK]) for query_id in same)
    serious = len(same) >= COMMON * len(run) and 2 * found_first >= len(same)
    remedy = "use --remove_identical_ids if queries are documents of the corpus (ArguAna, Quora)"
    if not serious:
        remedy += "; else nothing to do: the ids only coincide"
    return _finding("identical_ids", what, remedy, same, serious)


def _other_corpus(run: Run, qrels: Qrels) -> Finding | None:
    judged = {docid for grades in qrels.values() for docid in grades}
    if not judged or any(docid in judged for ranking in run.values() for docid in ranking):
        return None
    retrieved = next((docid for ranking in run.values() for docid in ranking), "nothing")
    what = f"no retrieved document is judged for any query: the run has {retrieved}, the qrels {next(iter(judged))}"
    remedy = "the ids come from different corpora or spellings: use the corpus the qrels were made for"
    return Finding("no_judged_documents", what, remedy, len(judged), (retrieved,), True)


def _negative(qrels: Qrels) -> Finding | None:
    below = [query_id for query_id, grades in qrels.items() if min(grades.values(), default=0) < 0]
    count = sum(grade < 0 for query_id in below for grade in qrels[query_id].values())
    what = f"{count} grades in {len(below)} of {len(qrels)} judged queries are negative and count as not relevant"
    remedy = "nothing to do: trec_eval does the same, and treats them as not judged in Bpref and infAP"
    return _finding("negative_grades", what, remedy, below, count=count)


def _nothing_relevant(qrels: Qrels) -> Finding | None:
    without = [query_id for query_id, grades in qrels.items() if max(grades.values(), default=0) <= 0]
    what = f"{len(without)} of {len(qrels)} judged queries have no relevant document and score 0: {_list(without)}"
    remedy = "nothing to do to compare runs; the means of trec_eval include them too"
    return _finding("nothing_relevant", what, remedy, without)


def _finding(
    kind: str, what: str, remedy: str, ids: Collection[str], serious: bool = False, count: int | None = None
) -> Finding | None:
    """Return a finding about some queries or documents, None if there are none; `count` if it is not their number."""
    return Finding(kind, what, remedy, len(ids) if count is None else count, _sample(ids), serious) if ids else None


def _sample(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(list(ids)[:SAMPLE])


def _list(ids: Collection[str]) -> str:
    return ", ".join(_sample(ids)) + (", …" if len(ids) > SAMPLE else "")
