"""Score runs against relevance judgements, and say first what is wrong with them."""

from starbucks_retrieval.evaluate.api import evaluate
from starbucks_retrieval.evaluate.comparison import BaselineComparisons, RunComparison
from starbucks_retrieval.evaluate.preflight import Finding, preflight, preflight_qrels
from starbucks_retrieval.evaluate.results import Evaluation, RunResult, SetResult

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
