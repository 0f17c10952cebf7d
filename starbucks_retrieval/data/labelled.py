"""Labelled texts: one sentence or two, and the class that people put them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.data.fields import FIRST, HEADERS, LABEL, SECOND, SPLIT, BadRow, as_text, kind, string, value
from starbucks_retrieval.data.records import Records
from starbucks_retrieval.data.sources import find_ir, find_rows
from starbucks_retrieval.errors import UserError

_TSV = {2: ("label", "text"), 3: ("label", "text", "text2")}
_HEADER_WORDS = HEADERS | {*LABEL, *FIRST, *SECOND}


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, and its class. `second` is None for a single text; `split` is empty without one."""

    text: str
    second: str | None
    label: str
    split: str


def open_labelled(collection: str, *, config: str | None = None, split: str | None = None) -> Records[LabelledText]:
    """Open labelled texts: tsv, csv, jsonl or Parquet file, folder with a `labelled` file, Arrow folder or hub data set.

    Columns: `label` (or `coarse_label`), `text` (or `sentence`, `sentence1`, `text1`), optional `text2` (or `sentence2`)
    and `split`. A tsv file without a header has label and text, or label and two texts. `split` names a split of a hub
    data set or Arrow folder; files are read whole. Nothing is read yet but the name.
    """
    if find_ir(collection, split):
        raise UserError(f"{collection} has passages and queries, but no labels", "name a file or a hub data set")
    rows = find_rows(collection, "labelled", _TSV, config, split)
    return Records(collection, rows.source, rows.read, labelled_from)


def labelled_from(row: dict[str, Any]) -> LabelledText:
    """A row as a labelled text. Raises BadRow for a missing or wrong column, and for a label that is withheld."""
    label = _label(value(row, LABEL))
    text = string(row, FIRST)
    if label in _HEADER_WORDS and text in _HEADER_WORDS:
        raise BadRow(f"{label!r} and {text!r} look like the names of columns", "name them label, text and text2")
    second = string(row, SECOND) if any(name in row for name in SECOND) else None
    return LabelledText(text, second, label, as_text(row.get(SPLIT), SPLIT))


def _label(found: Any) -> str:
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        named = "empty" if found == "" else kind(found)
        raise BadRow(f"{LABEL[0]} is {named}, not a class", "write the class as a string or an integer")
    if str(found) == "-1":
        raise BadRow(f"{LABEL[0]} is -1: it is withheld", "take a split, or a release of the set, that has its labels")
    return str(found)
