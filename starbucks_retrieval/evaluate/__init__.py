"""Score runs against relevance judgements, after a preflight that checks them for defects."""

from starbucks_retrieval.evaluate.api import evaluate
from starbucks_retrieval.evaluate.comparison import BaselineComparisons, RunComparison, RunResult
from starbucks_retrieval.evaluate.preflight import Finding, preflight, preflight_qrels
from starbucks_retrieval.evaluate.results import Evaluation, SetResult

__all__ = [
    "BaselineComparisons",
    "Evaluation",
    "Finding",
    "RunComparison",
    "RunResult",
    "SetResult",
    "evaluate",
    "preflight",
    "preflight_qrels",
]
