"""Score runs against relevance judgements, and say first what is wrong with them."""

from starbucks_retrieval.evaluate.api import evaluate
from starbucks_retrieval.evaluate.preflight import Finding, preflight
from starbucks_retrieval.evaluate.results import Evaluation, RunResult

__all__ = ["Evaluation", "Finding", "RunResult", "evaluate", "preflight"]
