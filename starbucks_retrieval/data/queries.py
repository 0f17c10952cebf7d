"""Queries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from starbucks_retrieval.data.fields import QUERY_ID, QUERY_TEXT, identifier, string
from starbucks_retrieval.data.qrels import read_qrels
from starbucks_retrieval.data.records import Query, Read, Records
from starbucks_retrieval.data.sources import beir_folder, find_rows

_TSV = {2: ("query_id", "query")}


def open_queries(collection: str, *, config: str | None = None, split: str | None = None) -> Records[Query]:
    """Open queries: jsonl, csv, tsv or Parquet file, BEIR or Arrow folder, `ir:` id, short name or Hugging Face data set.

    A BEIR folder keeps the queries of all splits in one file: with a `split`, only those that `qrels/<split>` judges.
    """
    rows = find_rows(collection, "queries", _TSV, config, split)
    read = rows.read
    if split and beir_folder(collection):
        read = partial(_judged, read, frozenset(read_qrels(collection, split=split)))
    return Records(collection, rows.source, read, query_from)


def query_from(row: dict[str, Any]) -> Query:
    """A row as a query. Raises BadRow for a missing or wrong column."""
    return Query(identifier(row, QUERY_ID), string(row, QUERY_TEXT))


def _judged(
    read: Read, query_ids: frozenset[str], start: int, stop: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    # A row without an id goes through, to be complained about where its line is known.
    kept = (
        (number, row)
        for number, row in read(0, None)
        if not (ids := [row[name] for name in QUERY_ID if name in row]) or str(ids[0]) in query_ids
    )
    yield from islice(kept, start, stop)
