"""Texts that people annotated: scored pairs of sentences (STS) and labelled texts (classification)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starbucks_retrieval.data import fields
from starbucks_retrieval.data.fields import BadRow, as_number, as_text, kind, string, value
from starbucks_retrieval.data.formats import NumberedRows, arrow
from starbucks_retrieval.data.records import Records, ScoredPair
from starbucks_retrieval.data.sources import Collection, SourceRows, as_path, find_ir, find_path, find_rows
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

_PAIR_LAYOUTS = {3: ("score", "sentence1", "sentence2")}
_LABELLED_LAYOUTS = {2: ("label", "text"), 3: ("label", "text", "text2")}
_COLUMN_NAMES = fields.HEADERS | {*fields.LABEL, *fields.FIRST, *fields.SECOND}
_SPLITS = frozenset({"train", "dev", "validation", "valid", "val", "test"})


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, and its class.

    Attributes:
        text: The text, or the first text of the pair.
        second: The second text; None for a single text.
        label: The class.
        split: The split that the row names; empty if it names none.
    """

    text: str
    second: str | None
    label: str
    split: str


def open_pairs(collection: Collection, *, config: str | None = None, split: str | None = None) -> Records[ScoredPair]:
    """Open scored pairs of sentences. Nothing is read before they are iterated.

    Args:
        collection: A file, a folder with a file `pairs`, a save_to_disk folder, or a Hugging Face data set. Columns:
            `score` (or `label`, `similarity_score`), `sentence1` and `sentence2` (or `text1`, `text2`), optional `subset`
            and `split`. A tsv file without a header has score, first and second sentence.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set or of a save_to_disk folder with several. In any other file, the rows
            whose column `split` has this value; rows without that column belong to every split.

    Returns:
        The pairs in the order of the collection; scores have the collection's own scale.

    Raises:
        UserError: As for `open_corpus`; iterating also raises it, with the splits there are, if no row has the split.
    """
    collection = as_path(collection)
    if find_ir(collection, split):
        raise UserError(f"{collection} has passages and queries, but no scored pairs", "name a file or a hub data set")
    rows = find_rows(collection, "pairs", _PAIR_LAYOUTS, config, split)
    path = find_path(collection)
    if not split or path is None or arrow.has_splits(path):
        return Records(collection, rows.source, rows.read, _pair_from)
    return Records(collection, rows.source, lambda start, stop: islice(_rows_of(rows, split), start, stop), _pair_from)


def open_split_of_pairs(collection: str, split: str | None = None) -> Records[ScoredPair]:
    """Open the split of scored pairs that a set is evaluated on.

    Other than in `open_pairs`, a file is read whole if it has no column `split`, or if the column names no split
    (train, dev, test …): the releases of a year's STS task use it for the set that a pair is from. To find out, this
    function reads a local file once.

    Args:
        collection: As for `open_pairs`.
        split: The split to read; None for `test`.

    Returns:
        The pairs of the split, or of the whole file.

    Raises:
        UserError: As for `open_pairs`; also if the column `split` holds other values only, and `split` is neither one
            of them nor the usual name of a split.
    """
    path = find_path(collection)
    if path is None or arrow.has_splits(path):
        return open_pairs(collection, split=split or "test")
    records = open_pairs(collection)
    named = dict.fromkeys(
        str(row[fields.SPLIT])
        for _, row in find_rows(collection, "pairs", _PAIR_LAYOUTS, None, None).read(0, None)
        if fields.SPLIT in row
    )
    if split in named or not _SPLITS.isdisjoint(named):
        return open_pairs(collection, split=split or "test")
    if named and split and split not in _SPLITS:
        raise UserError(f"{records.source} has no split {split!r}", f"name one of {', '.join(named)}")
    return records


def open_labelled(
    collection: Collection, *, config: str | None = None, split: str | None = None
) -> Records[LabelledText]:
    """Open labelled texts. Nothing is read before they are iterated.

    Args:
        collection: A file, a folder with a file `labelled`, a save_to_disk folder, or a Hugging Face data set. Columns:
            `label` (or `coarse_label`), `text` (or `sentence`, `sentence1`, `text1`), optional `text2` (or `sentence2`)
            and `split`. A tsv file without a header has label and text, or label and two texts.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set or of a save_to_disk folder; files are read whole.

    Returns:
        The texts in the order of the collection.

    Raises:
        UserError: As for `open_corpus`; iterating also raises it for a label that is missing or withheld (-1).
    """
    collection = as_path(collection)
    if find_ir(collection, split):
        raise UserError(f"{collection} has passages and queries, but no labels", "name a file or a hub data set")
    rows = find_rows(collection, "labelled", _LABELLED_LAYOUTS, config, split)
    return Records(collection, rows.source, rows.read, _labelled_from)


def _pair_from(row: dict[str, Any]) -> ScoredPair:
    score = as_number(value(row, fields.PAIR_SCORE), fields.PAIR_SCORE[0])
    # The STS task of a year is released as one file, whose column `split` names the set that a pair is from.
    subset = as_text(row.get(fields.SUBSET, row.get(fields.SPLIT)), fields.SUBSET)
    return ScoredPair(string(row, fields.SENTENCE1), string(row, fields.SENTENCE2), score, subset)


def _labelled_from(row: dict[str, Any]) -> LabelledText:
    label = _label(value(row, fields.LABEL))
    text = string(row, fields.FIRST)
    if label in _COLUMN_NAMES and text in _COLUMN_NAMES:
        raise BadRow(f"{label!r} and {text!r} look like the names of columns", "name them label, text and text2")
    second = string(row, fields.SECOND) if any(name in row for name in fields.SECOND) else None
    return LabelledText(text, second, label, as_text(row.get(fields.SPLIT), fields.SPLIT))


def _label(found: Any) -> str:
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        shown = "empty" if found == "" else kind(found)
        raise BadRow(f"{fields.LABEL[0]} is {shown}, not a class", "write the class as a string or an integer")
    if str(found) == "-1":
        raise BadRow(
            f"{fields.LABEL[0]} is -1: it is withheld", "take a split, or a release of the set, that has its labels"
        )
    return str(found)


def _rows_of(rows: SourceRows, split: str) -> NumberedRows:
    named = unnamed = 0
    others: dict[str, None] = {}
    for number, row in rows.read(0, None):
        if fields.SPLIT not in row:
            unnamed += 1
            yield number, row
        elif row[fields.SPLIT] == split:
            named += 1
            yield number, row
        else:
            others.setdefault(str(row[fields.SPLIT]))
    if unnamed:
        log.info("%s: %d rows have no column %s; they are read for split %r", rows.source, unnamed, fields.SPLIT, split)
    elif others and not named:
        raise UserError(f"{rows.source} has no split {split!r}", f"name one of {', '.join(others)}")
