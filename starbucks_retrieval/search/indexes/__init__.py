"""Approximate indexes over a store: any FAISS factory, or one bit per dimension; results are rescored exactly."""

from starbucks_retrieval.search.indexes.build import IndexSummary, build_index
from starbucks_retrieval.search.indexes.manifest import IndexManifest
from starbucks_retrieval.search.indexes.parameters import parse_parameters
from starbucks_retrieval.search.indexes.saved import RESCORE, SavedIndex, open_index, recall, sample_rows

__all__ = [
    "RESCORE",
    "IndexManifest",
    "IndexSummary",
    "SavedIndex",
    "build_index",
    "open_index",
    "parse_parameters",
    "recall",
    "sample_rows",
]
