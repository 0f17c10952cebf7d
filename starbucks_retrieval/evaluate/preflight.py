"""What makes a run's figures untrustworthy, looked for before they are believed.

A published table once carried 0.02 next to 0.84 for one data set. Two causes would explain it and neither was ruled
out: a run file cut off at its end (the queries without results are the last ones), and hub passages (the same few in
every top ten). They are told apart here. One document twice for a query is not looked for: the reading layer refuses
such a file by its line, and a run in memory maps each docid to one score. What only a file can have, ranks that
disagree with scores and a query's results in several places, the reading layer notes and this module judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from starbucks_retrieval.metrics.measures import Qrels, Run, trec_top

TOP = 10
HUB_SHARE = 0.1  # of the top tens: fewer are no hub, whatever the collection
HUB_ODDS = 5  # how much more popular than the average document one may be, as a ratio of odds
HUB_CHANCE = 0.01  # that sampling the queries makes a hub of any document of a collection
HUB_QUERIES = 20  # of fewer queries, one passage in two top tens is no news
COMMON = 0.05  # the share of queries from which on a matter of ids or ranks is no accident
SAMPLE = 5

_WRITE_AGAIN = "the run file looks cut off at its end: write it again and check that the disk is not full"

Tops = Mapping[str, list[tuple[float, str]]]  # query id → (score, docid) of its best results, best first


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a run: `what` and `remedy` in a line each, how often, and the first few ids of it.

    A `serious` finding makes the figures wrong or not comparable; any other is worth knowing.
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
    """The findings about `run` under `qrels`, none when it looks sound.

    Queries without results are checked for being the last in the order of `qrels` and in `query_order`, the order in
    which the queries were searched, where it is known. `misranked` and `scattered` are what `open_run` says of a file.
    `documents` is how many were searched; where that is unknown, those are counted that the run or `qrels` name.
    """
    # One more than the top ten: a tie across the cut decides who is in.
    tops = {query_id: trec_top(ranking, TOP + 1) for query_id, ranking in run.items()}
    found = [
        _missing(run, qrels, query_order),
        _unjudged(run, qrels),
        _non_finite(run),
        _tied(tops),
        _misranked(run, misranked),
        _scattered(run, scattered),
        _hubs(tops, qrels, documents or len(_named(run, qrels))),
        _identical(run),
        _strangers(run, qrels),
    ]
    return [finding for finding in found if finding]


def preflight_qrels(qrels: Qrels) -> list[Finding]:
    """What is worth knowing about judgements, whatever run they score."""
    return [finding for finding in (_negative(qrels), _hopeless(qrels)) if finding]


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


def beside(finding: Finding, query_ids: Collection[str], qrels: Qrels, orders: Mapping[str, Sequence[str]]) -> Finding:
    """A finding of missing queries seen beside other runs: a truncated run, where these are the last of one of them.

    `query_ids` are the run's own; `orders` are the queries of other runs, by name, in the order of their files.
    """
    missing = {query_id for query_id in qrels if query_id not in query_ids}
    for name, order in orders.items() if finding.kind == "missing_queries" and missing else ():
        judged = [query_id for query_id in order if query_id in qrels]
        if len(judged) > len(missing) and set(judged[-len(missing) :]) == missing:
            what = f"{finding.what}; they are the last of {name}"
            return replace(finding, kind="truncated_run", what=what, remedy=_WRITE_AGAIN)
    return finding


def _cut_off(run: Run, qrels: Qrels, missing: set[str], query_order: Sequence[str] | None) -> str:
    """Why the run seems to have lost its end; empty when it does not."""
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
    if not unjudged:
        return None
    what = f"{len(unjudged)} of {len(run)} queries in the run are not judged and count for nothing: {_list(unjudged)}"
    remedy = "nothing to do if the qrels judge a part of the topics; otherwise check the qrels and --split"
    return Finding("unjudged_queries", what, remedy, len(unjudged), _sample(unjudged), False)


def _non_finite(run: Run) -> Finding | None:
    bad = {
        query_id: sum(not np.isfinite(value) for value in ranking.values())
        for query_id, ranking in run.items()
        if not np.isfinite(sum(ranking.values()))  # any NaN or infinity survives a sum
    }
    bad = {query_id: count for query_id, count in bad.items() if count}
    if not bad:
        return None
    total = sum(bad.values())
    what = f"{total} scores in {len(bad)} queries are NaN or infinite and rank below every other: {_list(bad)}"
    remedy = "encode again: a vector overflowed; try --dtype fp32 or --store_dtype float32"
    return Finding("non_finite_scores", what, remedy, total, _sample(bad), True)


def _tied(tops: Tops) -> Finding | None:
    # What is not finite is all one to trec_eval, and another finding.
    scores = {query_id: [score for score, _ in top if np.isfinite(score)] for query_id, top in tops.items()}
    tied = [query_id for query_id, top in scores.items() if len(set(top)) < len(top)]
    if not tied:
        return None
    # Half-precision scores tie often and shift a measure by thousandths; one score for all leaves no ranking at all.
    flat = sum(len(top) > 1 and top[0] == top[-1] for top in scores.values())
    what = f"{len(tied)} of {len(tops)} queries have tied scores in the top {TOP}, put in order by docid: {_list(tied)}"
    remedy = "write scores with more digits; tools that break ties otherwise will give other figures"
    if 2 * flat > len(tops):
        what += f"; in {flat} of them all scores are one"
    return Finding("tied_scores", what, remedy, len(tied), _sample(tied), 2 * flat > len(tops))


def _misranked(run: Run, misranked: Sequence[str]) -> Finding | None:
    if not misranked:
        return None
    what = (
        f"in {len(misranked)} of {len(run)} queries the rank column disagrees with the scores, which count here as in "
        f"trec_eval: {_list(misranked)}"
    )
    remedy = "write scores that fall with the rank, if the ranks are what was meant; a tool that reads ranks differs"
    serious = len(misranked) >= COMMON * len(run)
    return Finding("misranked_queries", what, remedy, len(misranked), _sample(misranked), serious)


def _scattered(run: Run, scattered: Sequence[str]) -> Finding | None:
    if not scattered:
        return None
    what = (
        f"the results of {len(scattered)} of {len(run)} queries stand in more than one place of the file and are taken "
        f"together: {_list(scattered)}"
    )
    remedy = "nothing to do if parts of one corpus were searched apart; otherwise two runs were joined by mistake"
    return Finding("scattered_queries", what, remedy, len(scattered), _sample(scattered), False)


def _named(run: Run, qrels: Qrels) -> set[str]:
    return {docid for lists in (run, qrels) for one in lists.values() for docid in one}


def _hubs(tops: Tops, qrels: Qrels, documents: int) -> Finding | None:
    """Documents that are in more of the top tens, without being relevant there, than can be explained.

    The average document is in a share of 10 / `documents` of them, and topics make some more popular than others. The
    limit is 5 times the average's odds, a tenth of the top tens at least. A hub has a count over it that has less than
    a chance of 0.01 / `documents` if its true share is the limit (binomial: each query is one trial).
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

    hubs = [docid for docid, n in over.items() if binom.sf(n - 1, len(tops), limit) * documents < HUB_CHANCE]
    hubs.sort(key=lambda docid: -excess[docid])
    if not hubs:
        return None
    worst = hubs[0]
    what = (
        f"in more of the top tens than chance and relevance explain: {_list(hubs)}; {worst} alone in {counts[worst]} of "
        f"{len(tops)} and judged relevant in {relevant[worst]} of those, where up to {limit:.0%} is no news"
    )
    remedy = "look at them: text without content, or a size that was not trained; drop them from the corpus"
    if any(score > 1.01 for top in tops.values() for score, _ in top[:1]):  # not cosines
        remedy = "look at them: text without content, or a vector of huge length; drop them, or train with --normalize"
    return Finding("hub_documents", what, remedy, len(hubs), _sample(hubs), True)


def _identical(run: Run) -> Finding | None:
    own = [query_id for query_id, ranking in run.items() if query_id in ranking]
    if not own:
        return None
    what = f"{len(own)} of {len(run)} queries retrieve a document of their own id: {_list(own)}"
    remedy = (
        "--remove_identical_ids, if queries are documents of the corpus (ArguAna, Quora); else the ids only coincide"
    )
    return Finding("identical_ids", what, remedy, len(own), _sample(own), len(own) >= COMMON * len(run))


def _strangers(run: Run, qrels: Qrels) -> Finding | None:
    judged = {docid for grades in qrels.values() for docid in grades}
    if not judged or any(docid in judged for ranking in run.values() for docid in ranking):
        return None
    retrieved = next((docid for ranking in run.values() for docid in ranking), "nothing")
    what = f"no retrieved document is judged for any query: the run has {retrieved}, the qrels {next(iter(judged))}"
    remedy = "the ids come from different corpora or spellings: use the corpus the qrels were made for"
    return Finding("no_judged_documents", what, remedy, len(judged), (retrieved,), True)


def _negative(qrels: Qrels) -> Finding | None:
    below = [query_id for query_id, grades in qrels.items() if min(grades.values(), default=0) < 0]
    if not below:
        return None
    count = sum(grade < 0 for query_id in below for grade in qrels[query_id].values())
    what = f"{count} grades in {len(below)} of {len(qrels)} judged queries are negative and taken for not relevant"
    remedy = "nothing to do: trec_eval does the same, and in Bpref and infAP takes them for not judged"
    return Finding("negative_grades", what, remedy, count, _sample(below), False)


def _hopeless(qrels: Qrels) -> Finding | None:
    hopeless = [query_id for query_id, grades in qrels.items() if max(grades.values(), default=0) <= 0]
    if not hopeless:
        return None
    what = f"{len(hopeless)} of {len(qrels)} judged queries have no relevant document and score 0: {_list(hopeless)}"
    remedy = "nothing to do to compare runs; means of trec_eval hold them too"
    return Finding("nothing_relevant", what, remedy, len(hopeless), _sample(hopeless), False)


def _sample(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(list(ids)[:SAMPLE])


def _list(ids: Iterable[str]) -> str:
    ids = list(ids)
    return ", ".join(ids[:SAMPLE]) + (", …" if len(ids) > SAMPLE else "")
