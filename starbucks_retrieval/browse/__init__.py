"""One HTML page that shows what several runs find for each query, side by side."""

from starbucks_retrieval.browse.api import Browsed, browse
from starbucks_retrieval.browse.compare import ComparedHit, QueryComparison, RankedList, RunSummary, compare_runs

__all__ = ["Browsed", "ComparedHit", "QueryComparison", "RankedList", "RunSummary", "browse", "compare_runs"]
