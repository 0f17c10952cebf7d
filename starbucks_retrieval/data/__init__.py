"""Readers of corpora, queries, qrels, runs, training groups and scored pairs, and the writer of runs.

`FORMATS` maps file endings to row readers; a package outside adds a format with `FORMATS.register`, or with an entry point
in the group `starbucks_retrieval.formats`.
"""

from starbucks_retrieval.data.collection import check_qrels, open_corpus, open_queries, read_qrels
from starbucks_retrieval.data.formats import FORMATS
from starbucks_retrieval.data.groups import open_groups
from starbucks_retrieval.data.pairs import open_pairs
from starbucks_retrieval.data.records import Group, Passage, Query, Records, Scan, ScoredPair, join_text, scan
from starbucks_retrieval.data.run_reader import open_run, read_run
from starbucks_retrieval.data.run_writer import write_run
from starbucks_retrieval.data.sources import as_path
from starbucks_retrieval.lazy import public_names

__all__ = [
    "FORMATS",
    "Group",
    "Passage",
    "Query",
    "Records",
    "Scan",
    "ScoredPair",
    "as_path",
    "check_qrels",
    "join_text",
    "open_corpus",
    "open_groups",
    "open_pairs",
    "open_queries",
    "open_run",
    "read_qrels",
    "read_run",
    "scan",
    "write_run",
]
__dir__ = public_names(__name__)
