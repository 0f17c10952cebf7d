"""Measures over runs, computed by ir-measures on one ranking for all: trec_eval's.

trec_eval ignores the rank column and sorts a query's results by score, as float32 (so 1 and 1 + 1e-12 tie), then by
docid, byte-wise, both descending. The tools behind ir-measures disagree on ties: pytrec_eval, which is trec_eval, is
given the run as it is; those that compute Judged@10 or Compat take the smaller docid first, so they are handed a run in
trec_eval's order with its ranks for scores, which leaves nothing to break. Gains are linear, as in trec_eval's ndcg_cut.

A negative grade is no gain. trec_eval takes such a document for not relevant, and in Bpref and infAP for not judged;
the other tools are handed 0 in its place.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from ir_measures import Measure, Metric

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]

# Queries put in order at a time: the ranked copy of a run of 6,980 queries never stands in memory whole.
_BATCH = 512
_SPELLING = "write it as in RR@10, P@5, AP(rel=2), nDCG@10"


@dataclass(frozen=True)
class Scores:
    """What `score` found: `mean` by measure, `per_query` by measure and query_id, over every judged query."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def parse_measures(text: str) -> list[Measure]:
    """The measures named in `text`, in ir-measures' spelling (`RR@10 nDCG@10 P(rel=2)@5`), split at spaces or commas.

    trec_eval's names (`ndcg_cut_10`, `recall.1000`, `map`) are read as what ir-measures calls them.
    Raises UserError for a name, parameter or cutoff that is unknown, and for a measure no installed tool computes.
    """
    # A comma or a space inside parentheses belongs to a measure's parameters.
    words = re.findall(r"(?:[^\s,(]|\([^)]*\))+", text)
    if not words:
        raise UserError("no measure is named", "name some: RR@10 nDCG@10 R@1000")
    return list(dict.fromkeys(_parse_measure(word) for word in words))


def _parse_measure(word: str) -> Measure:
    import ir_measures

    try:
        measure = _of_trec_eval(word) or ir_measures.parse_measure(word)
        supported = ir_measures.DefaultPipeline.supports(measure)
        able = [provider for provider in ir_measures.DefaultPipeline.providers if provider.supports(measure)]
    except NameError:
        spelling = {name.lower(): known.NAME for name, known in ir_measures.measures.registry.items()}
        name = re.sub(r"\W.*", "", word)
        near = spelling.get(name.lower())
        hint = f"did you mean {near}{word[len(name) :]}?" if near else "use ir-measures' names: RR@10 AP P@5"
        raise UserError(f"there is no measure {word!r}", hint) from None
    except UserError:
        raise
    except Exception:  # its parser and its checks raise whatever comes
        raise UserError(f"{word!r} is not a measure as ir-measures writes them", _SPELLING) from None
    if measure.params.get("cutoff", 1) < 1:
        raise UserError(f"{word!r} cuts before the first rank", _SPELLING)
    if not supported:
        steps = [step for step in (provider.install_instructions() for provider in able) if step]
        hint = f"a tool that does: {steps[0]}" if steps else "change its parameters"
        raise UserError(f"nothing installed computes {word!r}", hint)
    return measure


def _of_trec_eval(word: str) -> Measure | None:
    """What one of trec_eval's names stands for, None for any other word. Raises UserError for one of several."""
    import ir_measures

    try:
        measures = ir_measures.parse_trec_measure(word)
    except ValueError:
        return None
    if len(measures) != 1:
        raise UserError(
            f"{word!r} names {len(measures)} measures", f"name those wanted: {' '.join(map(str, measures))}"
        )
    return measures[0]


def score(qrels: Qrels, run: Run, measures: Iterable[Measure]) -> Scores:
    """Score `run` against `qrels` by every measure.

    Every query of `qrels` counts, as under `trec_eval -c`: one without results scores 0, so absence never inflates a
    mean. Queries of `run` that `qrels` does not judge are ignored. A non-finite score ranks below every finite one.
    """
    measures = list(measures)
    per_query: dict[str, dict[str, float]] = {str(measure): dict.fromkeys(qrels, 0.0) for measure in measures}
    by_trec_eval, by_others = _sorted_out(measures)
    if by_trec_eval:
        judged = {query_id: dict(grades) for query_id, grades in qrels.items() if run.get(query_id)}
        results = {query_id: _all_finite(run[query_id]) for query_id in judged}
        for metric in _compute(list(by_trec_eval), judged, results):
            for name, cutoff in by_trec_eval[metric.measure]:
                # The reciprocal of a rank beyond the cutoff is below that of the cutoff itself.
                found = cutoff is None or metric.value * (cutoff + 0.5) > 1
                per_query[name][metric.query_id] = float(metric.value) if found else 0.0
    for batch in _batches(qrels) if by_others else ():
        ranked = {query_id: _by_rank(run[query_id]) for query_id in batch if run.get(query_id)}
        for metric in _compute(by_others, batch, ranked):
            per_query[str(metric.measure)][metric.query_id] = float(metric.value)
    return Scores({str(measure): mean(measure, per_query[str(measure)].values()) for measure in measures}, per_query)


def mean(measure: Measure, values: Iterable[float]) -> float:
    """The figure of a set of queries from the figures of each: their mean, or for counts (NumQ, NumRet) their sum."""
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())


def is_mean(measure: Measure) -> bool:
    """Whether a set's figure is the mean over its queries, so that paired tests apply and averages over sets mean
    something."""
    return mean(measure, (1.0, 1.0)) == 1.0


def _sorted_out(measures: list[Measure]) -> tuple[dict[Measure, list[tuple[str, int | None]]], list[Measure]]:
    """Measures that pytrec_eval computes, each with the names it gives and the cutoff to apply to them; and all others.

    trec_eval has no RR@k. RR where it is no less than 1 / k is the same number; what ir-measures falls back to for it
    breaks ties otherwise and takes ten times as long.
    """
    from ir_measures import pytrec_eval

    by_trec_eval: dict[Measure, list[tuple[str, int | None]]] = {}
    others = []
    for measure in measures:
        cutoff = measure.params.get("cutoff") if measure.NAME == "RR" else None
        whole = type(measure)(**{k: v for k, v in measure.params.items() if k != "cutoff"}) if cutoff else measure
        if pytrec_eval.is_available() and pytrec_eval.supports(whole):
            by_trec_eval.setdefault(whole, []).append((str(measure), cutoff))
        else:
            others.append(measure)
    return by_trec_eval, others


def _compute(measures: list[Measure], qrels: Qrels, run: Run) -> list[Metric]:
    import ir_measures

    try:
        return list(ir_measures.iter_calc(measures, qrels, run))
    except ZeroDivisionError:
        # Accuracy divides by the number of results that are not relevant.
        names = " ".join(map(str, measures))
        raise UserError(f"ir-measures divides by zero in one of {names}", "leave out Accuracy") from None
    except subprocess.CalledProcessError:
        # gdeval, a Perl script, computes ERR and the exponential nDCG; it takes no other than numeric query ids.
        names = " ".join(map(str, measures))
        raise UserError(f"the program behind {names} rejects this run", "leave out ERR and exp-log2 measures") from None


def _batches(qrels: Qrels) -> Iterator[dict[str, dict[str, int]]]:
    query_ids = list(qrels)
    for start in range(0, len(query_ids), _BATCH):
        yield {
            query_id: {docid: max(grade, 0) for docid, grade in qrels[query_id].items()}
            for query_id in query_ids[start : start + _BATCH]
        }


def _all_finite(ranking: Mapping[str, float]) -> dict[str, float]:
    # Any NaN or infinity survives a sum.
    return ranking if isinstance(ranking, dict) and math.isfinite(sum(ranking.values())) else _by_rank(ranking)


def _by_rank(ranking: Mapping[str, float]) -> dict[str, float]:
    docids = trec_order(ranking)
    return dict(zip(docids, map(float, range(len(docids), 0, -1))))


def trec_order(ranking: Mapping[str, float]) -> list[str]:
    """The docids of one query's results, best first, in trec_eval's order: float32 score, then docid, descending."""
    docids = list(ranking)
    scores = float32_scores(ranking)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    if not np.any(ordered[1:] == ordered[:-1]):
        return [docids[i] for i in order.tolist()]
    by_docid = np.array(sorted(range(len(docids)), key=docids.__getitem__, reverse=True))
    order = by_docid[np.argsort(-scores[by_docid], kind="stable")]
    return [docids[i] for i in order.tolist()]


def trec_top(ranking: Mapping[str, float], depth: int) -> list[tuple[float, str]]:
    """(score as float32, docid) of the first `depth` results in trec_eval's order; the rest is not put in order."""
    scores, docids = float32_scores(ranking), list(ranking)
    rows = np.arange(len(scores))
    if len(scores) > depth:
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        rows = np.flatnonzero(scores >= least)
    return sorted(zip(scores[rows].tolist(), (docids[i] for i in rows.tolist())), reverse=True)[:depth]


def float32_scores(ranking: Mapping[str, float]) -> np.ndarray:
    """One query's scores as trec_eval compares them, float32 [results]; NaN and infinities become -inf, the lowest."""
    scores = np.fromiter(ranking.values(), dtype=np.float64, count=len(ranking))
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    single[~np.isfinite(scores)] = -np.inf
    return single


def remove_identical_ids(run: Run) -> dict[str, dict[str, float]]:
    """`run` without the results whose docid is the query's own id, BEIR's rule for ArguAna and Quora."""
    return {
        query_id: {docid: value for docid, value in ranking.items() if docid != query_id}
        for query_id, ranking in run.items()
    }
