"""Retrieval measures, computed by ir-measures on the ranking of trec_eval.

trec_eval ignores the rank column and sorts the results of a query by score as float32 (so 1 and 1 + 1e-12 tie), then by
docid, byte-wise, both descending. The tools behind ir-measures break ties differently. pytrec_eval, which is trec_eval,
reads the run as it is; the tools for measures such as Judged@10 or Compat prefer the smaller docid, so they read the run
in trec_eval's order, with ranks as scores and therefore without ties. Gains are linear, as in trec_eval's ndcg_cut.

A negative grade has no gain: trec_eval treats the document as not relevant, and in Bpref and infAP as not judged; the other
tools read grade 0 instead.

Sources: MacAvaney, Macdonald and Ounis, "Streamlining Evaluation with ir-measures" (ECIR 2022); Järvelin and Kekäläinen,
"Cumulated gain-based evaluation of IR techniques" (TOIS 2002) for nDCG; https://trec.nist.gov/trec_eval.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from ir_measures import Measure, Metric

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]

# Queries ranked at a time, so that the ranked copy of a large run is never in memory as a whole.
_BATCH = 512
_SPELLING = "write it as in RR@10, P@5, AP(rel=2), nDCG@10"


@dataclass(frozen=True)
class Scores:
    """The figures of a run.

    Attributes:
        mean: measure → figure over all judged queries.
        per_query: measure → query id → value.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]

    def __repr__(self) -> str:
        figures = ", ".join(f"{measure} {value:.4f}" for measure, value in self.mean.items())
        return f"Scores({figures}; queries: {max(map(len, self.per_query.values()), default=0)})"


def parse_measures(text: str) -> list[Measure]:
    """Parse names of measures, separated by spaces or commas.

    Args:
        text: Names of ir-measures (`RR@10 nDCG@10 P(rel=2)@5`) or of trec_eval (`ndcg_cut_10`, `recall.1000`, `map`).

    Returns:
        The measures in the order given, each once.

    Raises:
        UserError: An unknown name, parameter or cutoff, or a measure that no installed tool computes.

    Example:
        >>> parse_measures("RR@10, ndcg_cut_10")
        [RR@10, nDCG@10]
    """
    # A comma or a space inside parentheses belongs to a measure's parameters.
    words = re.findall(r"(?:[^\s,(]|\([^)]*\))+", text)
    if not words:
        raise UserError("no measures are given", "name at least one: RR@10 nDCG@10 R@1000")
    return list(dict.fromkeys(_parse_measure(word) for word in words))


def measure_of(name: str) -> str:
    """Return a measure as result files name it.

    Example:
        >>> measure_of("RR@10"), measure_of("spearman")
        ('RR@10', 'spearman')
    """
    return name if name in ("spearman", "pearson") else str(parse_measures(name)[0])


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
        raise UserError(f"unknown measure {word!r}", hint) from None
    except UserError:
        raise
    except Exception:  # its parser and its checks raise many types
        raise UserError(f"{word!r} is not a measure in the notation of ir-measures", _SPELLING) from None
    if measure.params.get("cutoff", 1) < 1:
        raise UserError(f"{word!r} has a cutoff below 1", _SPELLING)
    if not supported:
        steps = [step for step in (provider.install_instructions() for provider in able) if step]
        hint = f"install a tool that does: {steps[0]}" if steps else "change its parameters"
        raise UserError(f"no installed tool computes {word!r}", hint)
    return measure


def _of_trec_eval(word: str) -> Measure | None:
    """Return the measure of a name of trec_eval, None for any other word. Raises UserError for a group of measures."""
    import ir_measures

    try:
        measures = ir_measures.parse_trec_measure(word)
    except ValueError:
        return None
    if len(measures) != 1:
        raise UserError(
            f"{word!r} names {len(measures)} measures", f"choose among them: {' '.join(map(str, measures))}"
        )
    return measures[0]


def score(qrels: Qrels, run: Run, measures: Iterable[Measure]) -> Scores:
    """Score a run.

    Every query of `qrels` counts, as with `trec_eval -c`: a query without results scores 0, so missing queries never
    raise a mean. Queries that are not judged are ignored. NaN and infinite scores rank below all others.

    Args:
        qrels: query id → docid → grade.
        run: query id → docid → score, higher is better.
        measures: Measures, as `parse_measures` returns them.

    Raises:
        UserError: The tool behind a measure cannot compute it on this run.

    Example:
        >>> qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
        >>> run = {"q1": {"d1": 0.9, "d2": 0.4}, "q2": {"d1": 0.8, "d2": 0.5}}
        >>> score(qrels, run, parse_measures("RR@10")).mean
        {'RR@10': 0.75}
    """
    measures = list(measures)
    per_query: dict[str, dict[str, float]] = {str(measure): dict.fromkeys(qrels, 0.0) for measure in measures}
    by_trec_eval, by_others = _split_by_tool(measures)
    if by_trec_eval:
        judged = {query_id: dict(grades) for query_id, grades in qrels.items() if run.get(query_id)}
        results = {query_id: _all_finite(run[query_id]) for query_id in judged}
        for metric in _compute(list(by_trec_eval), judged, results):
            for name, cutoff in by_trec_eval[metric.measure]:
                # The reciprocal of a rank beyond the cutoff is below that of the cutoff itself.
                found = cutoff is None or metric.value * (cutoff + 0.5) > 1
                per_query[name][metric.query_id] = float(metric.value) if found else 0.0
    query_ids = list(qrels) if by_others else []
    for start in range(0, len(query_ids), _BATCH):
        names = query_ids[start : start + _BATCH]
        batch = {name: {docid: max(grade, 0) for docid, grade in qrels[name].items()} for name in names}
        ranked = {name: _by_rank(run[name]) for name in names if run.get(name)}
        for metric in _compute(by_others, batch, ranked):
            per_query[str(metric.measure)][metric.query_id] = float(metric.value)
    return Scores({str(measure): mean(measure, per_query[str(measure)].values()) for measure in measures}, per_query)


def mean(measure: Measure, values: Iterable[float]) -> float:
    """Aggregate the values of queries to the figure of a set: their mean, or for counts (NumQ, NumRet) their sum.

    Example:
        >>> mean(parse_measures("P@5")[0], [0.2, 0.6]), mean(parse_measures("NumRet")[0], [10, 20])
        (0.4, 30.0)
    """
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())


def is_mean(measure: Measure) -> bool:
    """Return whether the figure of a set is the mean over its queries: only then paired tests and averages apply.

    Example:
        >>> [is_mean(measure) for measure in parse_measures("RR@10 NumRet")]
        [True, False]
    """
    return mean(measure, (1.0, 1.0)) == 1.0


def _split_by_tool(measures: list[Measure]) -> tuple[dict[Measure, list[tuple[str, int | None]]], list[Measure]]:
    """Return the measures that pytrec_eval computes, each with (name, cutoff) of its results, and all others.

    trec_eval does not have RR@k, but RR where it is at least 1 / k is the same number. The tool that ir-measures would use
    breaks ties differently and takes ten times as long.
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

    names = " ".join(map(str, measures))
    try:
        return list(ir_measures.iter_calc(measures, qrels, run))
    except ZeroDivisionError:
        # The measure Accuracy divides by the number of results that are not relevant.
        raise UserError(f"ir-measures divides by zero in one of {names}", "leave out Accuracy") from None
    except subprocess.CalledProcessError:
        # gdeval, a Perl script, computes ERR and the exponential nDCG; it reads only numeric query ids.
        raise UserError(f"the program behind {names} rejects this run", "leave out ERR and exp-log2 measures") from None


def _all_finite(ranking: Mapping[str, float]) -> dict[str, float]:
    # The sum is finite only if all scores are.
    return ranking if isinstance(ranking, dict) and math.isfinite(sum(ranking.values())) else _by_rank(ranking)


def _by_rank(ranking: Mapping[str, float]) -> dict[str, float]:
    docids = trec_order(ranking)
    return dict(zip(docids, map(float, range(len(docids), 0, -1))))


def trec_order(ranking: Mapping[str, float]) -> list[str]:
    """Return the docids of one query in trec_eval's order: float32 score, then docid, both descending.

    Example:
        >>> trec_order({"d1": 1.0, "d3": 2.0, "d2": 1.0 + 1e-12})
        ['d3', 'd2', 'd1']
    """
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
    """Return the first results of one query in trec_eval's order, without sorting the others.

    Args:
        ranking: docid → score.
        depth: The number of results to return, at least 1; a shorter ranking is returned whole.

    Returns:
        (float32 score, docid) pairs, best first.

    Example:
        >>> trec_top({"d1": 1.0, "d2": 2.0, "d3": 2.0}, 2)
        [(2.0, 'd3'), (2.0, 'd2')]
    """
    scores, docids = float32_scores(ranking), list(ranking)
    rows = np.arange(len(scores))
    if len(scores) > depth:
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        rows = np.flatnonzero(scores >= least)
    return sorted(zip(scores[rows].tolist(), (docids[i] for i in rows.tolist())), reverse=True)[:depth]


def float32_scores(ranking: Mapping[str, float]) -> np.ndarray:
    """Return the scores of one query as trec_eval compares them: float32 [results], with -inf for NaN and infinities."""
    scores = np.fromiter(ranking.values(), dtype=np.float64, count=len(ranking))
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    single[~np.isfinite(scores)] = -np.inf
    return single


def remove_identical_ids(run: Run) -> dict[str, dict[str, float]]:
    """Return the run without results whose docid is the query's id, BEIR's rule for ArguAna and Quora.

    Source: Thakur et al., "BEIR" (NeurIPS 2021, arXiv 2104.08663), `ignore_identical_ids` in its code.

    Example:
        >>> remove_identical_ids({"a1": {"a1": 1.0, "a2": 0.5}})
        {'a1': {'a2': 0.5}}
    """
    return {
        query_id: {docid: value for docid, value in ranking.items() if docid != query_id}
        for query_id, ranking in run.items()
    }
