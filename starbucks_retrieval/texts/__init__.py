"""Text in and runs out: corpora, queries, qrels, training groups, scored pairs and run files, one file per format."""

from starbucks_retrieval.texts.corpus import open_corpus
from starbucks_retrieval.texts.groups import open_groups
from starbucks_retrieval.texts.pairs import open_pairs
from starbucks_retrieval.texts.qrels import check_qrels, read_qrels
from starbucks_retrieval.texts.queries import open_queries
from starbucks_retrieval.texts.records import Group, Passage, Query, Records, ScoredPair, join_text
from starbucks_retrieval.texts.runs import read_run, write_run
from starbucks_retrieval.texts.scan import Scan, scan

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
