"""Runs laid side by side on one page: what was found, what is relevant, what a bigger size gained and lost."""

from starbucks_retrieval.browse.api import Browsed, browse
from starbucks_retrieval.browse.compare import ComparedHit, QueryComparison, RankedList, RunSummary, compare

__all__ = ["Browsed", "ComparedHit", "QueryComparison", "RankedList", "RunSummary", "browse", "compare"]
