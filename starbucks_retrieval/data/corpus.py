"""Corpora: collections of passages."""

from __future__ import annotations

from typing import Any

from starbucks_retrieval.data.fields import DOCID, TEXT, TITLE, as_text, identifier, string
from starbucks_retrieval.data.records import Passage, Records
from starbucks_retrieval.data.sources import find_rows

_TSV = {2: ("docid", "text"), 3: ("docid", "title", "text")}


def open_corpus(collection: str, *, config: str | None = None, split: str | None = None) -> Records[Passage]:
    """Open a corpus: jsonl, csv, tsv or Parquet file, BEIR or Arrow folder, `ir:` id, short name or Hugging Face data set.

    Nothing is read yet but the name; `scan` validates the whole. Raises UserError for a missing file.
    """
    rows = find_rows(collection, "corpus", _TSV, config, split)
    return Records(collection, rows.source, rows.read, passage_from)


def passage_from(row: dict[str, Any]) -> Passage:
    """A row as a passage. Raises BadRow for a missing or wrong column."""
    return Passage(identifier(row, DOCID), as_text(row.get(TITLE[0]), TITLE[0]), string(row, TEXT))
