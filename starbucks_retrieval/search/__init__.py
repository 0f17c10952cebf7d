"""Finding the nearest passages: exact search over stores, runs for evaluation, answers to queries as text."""

from starbucks_retrieval.search.api import SearchSummary, search
from starbucks_retrieval.search.arguments import FunnelArguments, IndexArguments, MilvusArguments, SearchArguments
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.searcher import Hit, Searcher

__all__ = [
    "FunnelArguments",
    "Hit",
    "IndexArguments",
    "MilvusArguments",
    "SearchArguments",
    "SearchSummary",
    "Searcher",
    "exact_search",
    "search",
]
