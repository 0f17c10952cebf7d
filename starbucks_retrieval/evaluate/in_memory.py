"""evaluate_run(): score a run in memory, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starbucks_retrieval.data import read_qrels, read_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.inputs import MEASURES, log_findings
from starbucks_retrieval.evaluate.preflight import preflight, preflight_qrels
from starbucks_retrieval.metrics.measures import Scores, parse_measures, score


def evaluate_run(
    run: Mapping[Any, Any] | str | os.PathLike[str],
    qrels: Mapping[Any, Any] | str | os.PathLike[str],
    measures: str | Sequence[str] | None = None,
    *,
    split: str = "test",
) -> Scores:
    """Score a run against judgements, as `starbucks evaluate` does for files.

    Every judged query counts; a query without results scores 0. What the preflight finds is logged. Ids may be numbers;
    they are compared as text.

    Args:
        run: {query id: {passage id: score}} as `search_vectors` returns it, {query id: passage ids, best first}, or
            {query id: hits} as `Searcher.search` returns them; or a run file.
        qrels: {query id: {passage id: grade}}, or {query id: relevant passage ids}; or what `--qrels` takes: a file, a
            BEIR folder, a short name.
        measures: Names of ir-measures, such as "nDCG@10 RR@10". Default: RR@10, nDCG@10 and R@1000.
        split: Split of a BEIR folder or short name.

    Returns:
        `mean`, measure → figure, and `per_query`, measure → query id → value.

    Raises:
        UserError: A run or judgements of another form, an unknown measure, or no query that is in both.

    Example:
        >>> from starbucks_retrieval import evaluate_run
        >>> scores = evaluate_run({"q1": {"d1": 0.9, "d2": 0.4}, "q2": ["d1", "d2"]}, {"q1": {"d1": 1}, "q2": {"d2": 1}}, "RR@10")
        >>> scores.mean["RR@10"], scores.per_query["RR@10"]
        (0.75, {'q1': 1.0, 'q2': 0.5})
    """
    names = measures if isinstance(measures, str) else " ".join(measures or [MEASURES])
    parsed = parse_measures(names)
    rankings = _by_query(run, "run", _ranking) if isinstance(run, Mapping) else read_run(_path(run, "run"))
    if isinstance(qrels, Mapping):
        grades: Any = _by_query(qrels, "judgements", _grades)
    else:
        grades = read_qrels(_path(qrels, "qrels"), split=split)
    if not grades.keys() & rankings.keys():
        first, other = next(iter(rankings), None), next(iter(grades), None)
        raise UserError(
            f"the run and the judgements share no query (the first are {first!r} and {other!r})",
            "use the judgements of the queries that were searched",
        )
    log_findings("judgements", preflight_qrels(grades))
    log_findings("run", preflight(rankings, grades))
    return score(grades, rankings, parsed)


def _path(source: Any, name: str) -> str:
    if not isinstance(source, str | os.PathLike):
        raise UserError(
            f"{name} is a {type(source).__name__}, not a dictionary or a file", "give {query id: {passage id: number}}"
        )
    return os.fspath(source)


def _by_query(content: Mapping[Any, Any], what: str, convert: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for query_id, values in content.items():
        try:
            found[str(query_id)] = convert(values)
        except (TypeError, ValueError):
            raise UserError(
                f"the {what} of query {query_id!r} cannot be read: {str(values)[:60]}",
                "give {passage id: number}, or passage ids alone",
            ) from None
    return found


def _ranking(values: Any) -> dict[str, float]:
    if isinstance(values, Mapping):
        return {str(docid): float(value) for docid, value in values.items()}
    if not isinstance(values, str | bytes):
        values = list(values)
        if values and all(hasattr(hit, "docid") and hasattr(hit, "score") for hit in values):
            return {hit.docid: float(hit.score) for hit in values}
    docids = _ids(values)
    return {docid: float(len(docids) - rank) for rank, docid in enumerate(docids)}


def _grades(values: Any) -> dict[str, int]:
    if not isinstance(values, Mapping):
        return dict.fromkeys(_ids(values), 1)
    found = {str(docid): int(grade) for docid, grade in values.items()}
    if any(grade != found[str(docid)] for docid, grade in values.items()):
        raise ValueError("a grade is not a whole number")
    return found


def _ids(values: Collection[Any]) -> list[str]:
    if isinstance(values, str | bytes):
        raise TypeError("one string, not several ids")
    return [str(docid) for docid in values]
