"""Sets of scored sentence pairs: the seven of the papers by name, and files."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from starbucks_retrieval.data.pairs import open_split_of_pairs
from starbucks_retrieval.errors import UserError

log = logging.getLogger(__name__)

# Name in the papers' tables -> hub data set. The hub joins all sets of a year, which is the papers' "all" setting.
SETS = {
    "STS12": "mteb/sts12-sts",
    "STS13": "mteb/sts13-sts",
    "STS14": "mteb/sts14-sts",
    "STS15": "mteb/sts15-sts",
    "STS16": "mteb/sts16-sts",
    "STS-B": "sentence-transformers/stsb",
    "SICK-R": "mteb/sickr-sts",
}
_SUFFIXES = re.compile(r"(\.(tsv|csv|jsonl|json|txt|parquet|gz))+$")


@dataclass(frozen=True)
class PairSet:
    """Scored pairs in the order of their file.

    Attributes:
        name: Name in tables.
        source: File or hub name.
        numbers: Line or row number of each pair.
        sentences: First and second sentences, two lists of the same length.
        scores: float64 [pairs], human scores.
        digest: Hash of sentences and scores in order, independent of the file format.
    """

    name: str
    source: str
    numbers: list[int]
    sentences: tuple[list[str], list[str]]
    scores: np.ndarray
    digest: str


def open_pair_sets(named: Sequence[str], split: str | None = None) -> list[PairSet]:
    """Read sets of scored pairs.

    Args:
        named: Names of `SETS`, files, hub names, or `NAME=` followed by one of these.
        split: Split to read where a collection has splits; the test split if None.

    Raises:
        UserError: A set cannot be read, has fewer than three pairs or equal scores, or two sets share a name.
    """
    if not named:
        raise UserError("no set of pairs is named", f"name some with --data: {' '.join(SETS)}, or files")
    sets: dict[str, PairSet] = {}
    for word in named:
        name, collection = _name_and_collection(word)
        if name in sets:
            raise UserError(
                f"two sets are called {name}: {sets[name].source} and {collection}",
                f"give one of them another name: --data other={collection}",
            )
        sets[name] = _read(name, collection, split)
    return list(sets.values())


def _name_and_collection(word: str) -> tuple[str, str]:
    """The name of a set and the collection behind it."""
    given, equals, collection = word.partition("=")
    if not equals or os.path.exists(word):
        given, collection = "", word
    given = _table_name(given) or given
    known = None if os.path.exists(collection) else _table_name(collection)
    if known:
        return given or known, SETS[known]
    stem = _SUFFIXES.sub("", Path(collection).name)
    hub = {hub_name: name for name, hub_name in SETS.items()}
    return given or hub.get(collection) or _table_name(stem) or stem, collection


def _table_name(word: str) -> str | None:
    """The spelling of the papers' tables, ignoring case and hyphens: stsb is STS-B."""
    plain = re.sub(r"[-_ ]", "", word).lower()
    return next((name for name in SETS if name.replace("-", "").lower() == plain), None)


def _read(name: str, collection: str, split: str | None) -> PairSet:
    records = open_split_of_pairs(collection, split)
    numbers, first, second, scores = [], [], [], []
    digest = hashlib.blake2b(digest_size=16)
    for number, pair in records.numbered():
        numbers.append(number)
        first.append(pair.sentence1)
        second.append(pair.sentence2)
        scores.append(pair.score)
        lengths = len(pair.sentence1), len(pair.sentence2)
        digest.update(f"{lengths} {pair.sentence1} {pair.sentence2} {pair.score!r}".encode())
    if len(scores) < 3:
        raise UserError(f"{records.source} has {len(scores)} scored pairs", "a correlation needs three or more")
    if min(scores) == max(scores):
        raise UserError(
            f"all {len(scores)} scores of {records.source} are {scores[0]:g}", "a correlation needs scores that differ"
        )
    empty = sum(not (a.strip() and b.strip()) for a, b in zip(first, second))
    if empty:
        log.warning("%d of %d pairs of %s lack a sentence; they are kept", empty, len(scores), records.source)
    return PairSet(name, records.source, numbers, (first, second), np.array(scores), digest.hexdigest())
