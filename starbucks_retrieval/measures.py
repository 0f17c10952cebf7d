"""Measures over runs, computed by ir-measures on one ranking for all: trec_eval's.

trec_eval ignores the rank column and sorts a query's results by score, as float32 (so 1 and 1 + 1e-12 tie), then by
docid, byte-wise, both descending. The tools behind ir-measures disagree on ties: pytrec_eval does as trec_eval does,
those that compute RR@10 or Judged@10 take the smaller docid first. So a run is put in trec_eval's order here and handed
on with its ranks for scores, which leaves nothing to break. Gains are linear, as in trec_eval's ndcg_cut.
"""

from __future__ import annotations

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

# Queries ranked at a time: the ranked copy of a run of 6,980 queries never stands in memory whole.
_BATCH = 512
_SPELLING = "write it as in RR@10, P@5, AP(rel=2), nDCG@10"


@dataclass(frozen=True)
class Scores:
    """What `score` found: `mean` by measure, `per_query` by measure and query_id, over every judged query."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def parse_measures(text: str) -> list[Measure]:
    """The measures named in `text`, in ir-measures' spelling (`RR@10 nDCG@10 P(rel=2)@5`), split at spaces or commas.

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
        measure = ir_measures.parse_measure(word)
        supported = ir_measures.DefaultPipeline.supports(measure)
        able = [provider for provider in ir_measures.DefaultPipeline.providers if provider.supports(measure)]
    except NameError:
        spelling = {name.lower(): known.NAME for name, known in ir_measures.measures.registry.items()}
        name = re.sub(r"\W.*", "", word)
        near = spelling.get(name.lower())
        hint = f"did you mean {near}{word[len(name) :]}?" if near else "use ir-measures' names: RR@10 AP P@5"
        raise UserError(f"there is no measure {word!r}", hint) from None
    except Exception:  # its parser and its checks raise whatever comes
        raise UserError(f"{word!r} is not a measure as ir-measures writes them", _SPELLING) from None
    if measure.params.get("cutoff", 1) < 1:
        raise UserError(f"{word!r} cuts before the first rank", _SPELLING)
    if not supported:
        steps = [step for step in (provider.install_instructions() for provider in able) if step]
        hint = f"a tool that does: {steps[0]}" if steps else "change its parameters"
        raise UserError(f"nothing installed computes {word!r}", hint)
    return measure


def score(qrels: Qrels, run: Run, measures: Iterable[Measure]) -> Scores:
    """Score `run` against `qrels` by every measure.

    Every query of `qrels` counts, as under `trec_eval -c`: one without results scores 0, so absence never inflates a
    mean. Queries of `run` that `qrels` does not judge are ignored. A non-finite score ranks below every finite one.
    """
    measures = list(measures)
    per_query: dict[str, dict[str, float]] = {str(measure): dict.fromkeys(qrels, 0.0) for measure in measures}
    for judged in _batches(qrels):
        ranked = {query_id: _by_rank(run[query_id]) for query_id in judged if run.get(query_id)}
        for depth, computed in _by_depth(measures).items():
            cut = ranked if depth is None else {q: dict(list(ranks.items())[:depth]) for q, ranks in ranked.items()}
            for metric in _compute(list(computed), judged, cut):
                per_query[computed[metric.measure]][metric.query_id] = float(metric.value)
    mean = {}
    for measure in measures:
        aggregator = measure.aggregator()
        for value in per_query[str(measure)].values():
            aggregator.add(value)
        mean[str(measure)] = aggregator.result()
    return Scores(mean, per_query)


def _compute(measures: list[Measure], qrels: Qrels, run: Run) -> list[Metric]:
    import ir_measures

    try:
        return list(ir_measures.iter_calc(measures, qrels, run))
    except subprocess.CalledProcessError:
        # gdeval, a Perl script, computes ERR and the exponential nDCG; it takes no other than numeric query ids.
        names = " ".join(map(str, measures))
        raise UserError(f"the program behind {names} rejects this run", "leave out ERR and exp-log2 measures") from None


def _batches(qrels: Qrels) -> Iterator[dict[str, dict[str, int]]]:
    query_ids = list(qrels)
    for start in range(0, len(query_ids), _BATCH):
        yield {query_id: dict(qrels[query_id]) for query_id in query_ids[start : start + _BATCH]}


def _by_depth(measures: list[Measure]) -> dict[int | None, dict[Measure, str]]:
    """Depth to cut rankings to (None: all) -> {measure to compute there: name of the one it gives}.

    trec_eval has no RR@k. RR over the first k is the same number, ten times faster than what ir-measures falls back to.
    """
    groups: dict[int | None, dict[Measure, str]] = {}
    for measure in measures:
        depth = measure.params.get("cutoff") if measure.NAME == "RR" else None
        whole = type(measure)(**{k: v for k, v in measure.params.items() if k != "cutoff"}) if depth else measure
        groups.setdefault(depth, {})[whole] = str(measure)
    return groups


def _by_rank(ranking: Mapping[str, float]) -> dict[str, float]:
    docids = trec_order(ranking)
    return dict(zip(docids, map(float, range(len(docids), 0, -1))))


def trec_order(ranking: Mapping[str, float]) -> list[str]:
    """The docids of one query's results, best first, in trec_eval's order: float32 score, then docid, descending."""
    docids = list(ranking)
    scores = comparable(ranking)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    if not np.any(ordered[1:] == ordered[:-1]):
        return [docids[i] for i in order.tolist()]
    by_docid = np.array(sorted(range(len(docids)), key=docids.__getitem__, reverse=True))
    order = by_docid[np.argsort(-scores[by_docid], kind="stable")]
    return [docids[i] for i in order.tolist()]


def comparable(ranking: Mapping[str, float]) -> np.ndarray:
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
