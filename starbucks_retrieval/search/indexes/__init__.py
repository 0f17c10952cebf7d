"""Indexes over a store: any FAISS factory, or sign bits; built once, kept in a folder, rescored by stored vectors."""

from starbucks_retrieval.search.indexes.build import IndexSummary, build_index
from starbucks_retrieval.search.indexes.manifest import IndexManifest
from starbucks_retrieval.search.indexes.parameters import parse_parameters
from starbucks_retrieval.search.indexes.recall import recall, sample_rows
from starbucks_retrieval.search.indexes.saved import RESCORE, SavedIndex, open_index

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
