"""Finding the nearest passages: exact search over stores, runs for evaluation, answers to typed queries."""

from starbucks_retrieval.search.api import SearchSummary, search
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.searcher import Hit, Searcher

__all__ = ["Hit", "SearchSummary", "Searcher", "exact_search", "search"]
