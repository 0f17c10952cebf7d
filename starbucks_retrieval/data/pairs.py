"""Scored pairs: two sentences and how alike people found them, as semantic textual similarity is measured by."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from starbucks_retrieval.data import arrow
from starbucks_retrieval.data.fields import (
    PAIR_SCORE,
    SENTENCE1,
    SENTENCE2,
    SPLIT,
    SUBSET,
    as_number,
    as_text,
    string,
    value,
)
from starbucks_retrieval.data.records import Records, ScoredPair
from starbucks_retrieval.data.sources import SourceRows, find_ir, find_path, find_rows
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_TSV = {3: ("score", "sentence1", "sentence2")}
_SPLITS = frozenset({"train", "dev", "validation", "valid", "val", "test"})


def open_pairs(collection: str, *, config: str | None = None, split: str | None = None) -> Records[ScoredPair]:
    """Open scored pairs: tsv, csv, jsonl or Parquet file, folder with a `pairs` file, Arrow folder or hub data set.

    Columns: `score` (or `label`, `similarity_score`), `sentence1` and `sentence2` (or `text1`, `text2`), optional
    `subset` and `split`. A tsv file without a header has score, first and second sentence.

    `split` names a split of a hub data set or of a save_to_disk folder that has several. Any other file is read by its
    column `split`: the rows of that split, and a UserError that lists the splits there are if it has none of them; rows
    without such a column belong to every split. Nothing is read yet but the name.
    """
    if find_ir(collection, split):
        raise UserError(f"{collection} has passages and queries, but no scored pairs", "name a file or a hub data set")
    rows = find_rows(collection, "pairs", _TSV, config, split)
    read = rows.read
    path = find_path(collection)
    if split and path is not None and not arrow.has_splits(path):
        read = partial(_of_split, rows, split)
    return Records(collection, rows.source, read, pair_from)


def open_split_of_pairs(collection: str, split: str | None = None) -> Records[ScoredPair]:
    """Open the part of a set of scored pairs that it is evaluated on: its `split`, by default `test`.

    As `open_pairs`, but a file whose column `split` names no split (train, dev, test …) is read whole: the releases of a
    year's STS task keep there which of its sets a pair is from. A set without any splits is read whole, too.
    """
    path = find_path(collection)
    if path is None or arrow.has_splits(path):
        return open_pairs(collection, split=split or "test")
    records = open_pairs(collection)
    named = dict.fromkeys(
        str(row[SPLIT]) for _, row in find_rows(collection, "pairs", _TSV, None, None).read(0, None) if SPLIT in row
    )
    if split in named or not _SPLITS.isdisjoint(named):
        return open_pairs(collection, split=split or "test")
    if named and split and split not in _SPLITS:
        raise UserError(f"{records.source} has no split {split!r}", f"name one of {', '.join(named)}")
    return records


def pair_from(row: dict[str, Any]) -> ScoredPair:
    """A row as a scored pair. Raises BadRow for a missing or wrong column."""
    score = as_number(value(row, PAIR_SCORE), PAIR_SCORE[0])
    # The STS releases of a year are kept as one file whose column `split` says which of its sets a pair is from.
    subset = as_text(row.get(SUBSET, row.get(SPLIT)), SUBSET)
    return ScoredPair(string(row, SENTENCE1), string(row, SENTENCE2), score, subset)


def _of_split(rows: SourceRows, split: str, start: int, stop: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from islice(_kept(rows, split), start, stop)


def _kept(rows: SourceRows, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    named = unnamed = 0
    others: dict[str, None] = {}
    for number, row in rows.read(0, None):
        if SPLIT not in row:
            unnamed += 1
            yield number, row
        elif row[SPLIT] == split:
            named += 1
            yield number, row
        else:
            others.setdefault(str(row[SPLIT]))
    if unnamed:
        log.info("%s: %d rows have no column %s; they are read for split %r", rows.source, unnamed, SPLIT, split)
    elif others and not named:
        raise UserError(f"{rows.source} has no split {split!r}", f"name one of {', '.join(others)}")
