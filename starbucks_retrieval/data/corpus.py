"""Corpora and queries."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from starbucks_retrieval.data.fields import DOCID, QUERY_ID, QUERY_TEXT, TEXT, TITLE, as_text, identifier, string
from starbucks_retrieval.data.formats import NumberedRows
from starbucks_retrieval.data.qrels import read_qrels
from starbucks_retrieval.data.records import Passage, Query, Read, Records
from starbucks_retrieval.data.sources import beir_folder, find_rows

_CORPUS_LAYOUTS = {2: ("docid", "text"), 3: ("docid", "title", "text")}
_QUERY_LAYOUTS = {2: ("query_id", "query")}


def open_corpus(collection: str, *, config: str | None = None, split: str | None = None) -> Records[Passage]:
    """Open a corpus. Nothing is read before it is iterated; `scan` validates all of it.

    Args:
        collection: A file (jsonl, csv, tsv, Parquet …), a BEIR folder, a save_to_disk folder, an `ir:` id, a short name,
            or a Hugging Face data set. Columns: `docid` (or `_id`, `doc_id`, `id`), `text` (or `contents`), optional
            `title`. A tsv file without a header has docid and text, or docid, title and text.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set, a short name, or a save_to_disk folder.

    Returns:
        The passages in the order of the collection, streamed from disk each time they are iterated.

    Raises:
        UserError: The file does not exist or has an unknown format. Iterating raises it for a bad row, with its line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "corpus.tsv")
        ...     _ = path.write_text("d1\\tHens lay eggs.\\n")
        ...     list(open_corpus(str(path)))
        [Passage(docid='d1', title='', text='Hens lay eggs.')]
    """
    rows = find_rows(collection, "corpus", _CORPUS_LAYOUTS, config, split)
    return Records(collection, rows.source, rows.read, passage_from)


def open_queries(collection: str, *, config: str | None = None, split: str | None = None) -> Records[Query]:
    """Open queries. Nothing is read before they are iterated, except the qrels of a split.

    Args:
        collection: As for `open_corpus`. Columns: `query_id` (or `_id`, `qid`) and `query` (or `text`, `query_text`).
        config: Configuration of a Hugging Face data set.
        split: As for `open_corpus`; of a BEIR folder, which keeps the queries of all splits in one file, only the queries
            that `qrels/<split>` judges.

    Returns:
        The queries in the order of the collection.

    Raises:
        UserError: As for `open_corpus`; also for a split without qrels.
    """
    rows = find_rows(collection, "queries", _QUERY_LAYOUTS, config, split)
    read = rows.read
    if split and beir_folder(collection):
        read = partial(_judged_rows, read, frozenset(read_qrels(collection, split=split)))
    return Records(collection, rows.source, read, query_from)


def passage_from(row: dict[str, Any]) -> Passage:
    """Convert a row to a passage.

    Args:
        row: Column → value. The id is in `docid`, `_id`, `doc_id` or `id`, the text in `text` or `contents`. A
            null text and a missing or null `title` count as empty. Other columns are ignored.

    Raises:
        BadRow: The row has no id or no column for the text, or a value has the wrong type.

    Example:
        >>> passage_from({"_id": 7, "text": "Hens lay eggs."})
        Passage(docid='7', title='', text='Hens lay eggs.')
    """
    return Passage(identifier(row, DOCID), as_text(row.get(TITLE[0]), TITLE[0]), string(row, TEXT))


def query_from(row: dict[str, Any]) -> Query:
    """Convert a row to a query. Raises BadRow for a missing or wrong column."""
    return Query(identifier(row, QUERY_ID), string(row, QUERY_TEXT))


def _judged_rows(read: Read, query_ids: frozenset[str], start: int, stop: int | None) -> NumberedRows:
    # A row without an id is kept: `query_from` reports it together with its line.
    kept = (
        (number, row)
        for number, row in read(0, None)
        if not (ids := [row[name] for name in QUERY_ID if name in row]) or str(ids[0]) in query_ids
    )
    yield from islice(kept, start, stop)
