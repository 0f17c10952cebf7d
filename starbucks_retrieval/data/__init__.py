"""Text in and runs out: corpora, queries, qrels, training groups, scored pairs and run files, one file per format."""

from starbucks_retrieval.data.corpus import open_corpus
from starbucks_retrieval.data.groups import open_groups
from starbucks_retrieval.data.pairs import open_pairs
from starbucks_retrieval.data.qrels import check_qrels, read_qrels
from starbucks_retrieval.data.queries import open_queries
from starbucks_retrieval.data.records import Group, Passage, Query, Records, ScoredPair, join_text
from starbucks_retrieval.data.runs import read_run, write_run
from starbucks_retrieval.data.scan import Scan, scan

__all__ = [
    "Group",
    "Passage",
    "Query",
    "Records",
    "Scan",
    "ScoredPair",
    "check_qrels",
    "join_text",
    "open_corpus",
    "open_groups",
    "open_pairs",
    "open_queries",
    "read_qrels",
    "read_run",
    "scan",
    "write_run",
]
