"""Collections of annotated sentences: scored pairs (STS) and classification tasks (SentEval), by name or from files."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from starbucks_retrieval.data.pairs import LabelledText, open_labelled, open_split_of_pairs
from starbucks_retrieval.data.records import Records
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
# mteb's SICK-R has all 9,927 pairs of SICK, SentEval's and the papers' before mteb its test part alone. The hub's copies of
# that part are another release (4,906 pairs), so it is read from SentEval's file.
SICK_TEST, _SICK_TEST_PAIRS = "SICK-R-test", 4927
_SICK_FILE = "SICK_test_annotated"
_SUFFIXES = re.compile(r"(\.(tsv|csv|jsonl|json|txt|parquet|gz))+$")
_TRAIN, _DEV, _TEST = ("train",), ("dev", "validation", "valid", "val"), ("test",)


@dataclass(frozen=True)
class _SentEvalTask:
    """A task of SentEval: its hub name and splits, and whether the splits are pooled and cross-validated."""

    hub: str
    splits: tuple[str, ...]
    pooled: bool = False
    dev_trains: bool = False  # the split for validation belongs to the original training set


# Sizes of the original releases: MR 10,662, CR 3,775, SUBJ 10,000, MPQA 10,606, SST2 6,920 + 872 + 1,821,
# TREC 5,452 + 500, MRPC 4,076 + 1,725. The hub's CR and MPQA are a few texts short.
TASKS = {
    "MR": _SentEvalTask("cornell-movie-review-data/rotten_tomatoes", ("train", "validation", "test"), pooled=True),
    "CR": _SentEvalTask("SetFit/SentEval-CR", ("train", "test"), pooled=True),
    "SUBJ": _SentEvalTask("SetFit/subj", ("train", "test"), pooled=True),
    "MPQA": _SentEvalTask("jxm/mpqa", ("train", "test"), pooled=True),  # its dev split repeats texts of the others
    "SST2": _SentEvalTask("SetFit/sst2", ("train", "validation", "test")),
    "TREC": _SentEvalTask("CogComp/trec", ("train", "test")),
    "MRPC": _SentEvalTask("SetFit/mrpc", ("train", "validation", "test"), dev_trains=True),
}


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


@dataclass(frozen=True)
class Task:
    """Labelled texts; a task without a test part is cross-validated.

    Attributes:
        name: Name in tables.
        source: File, folder or hub name.
        texts: First texts.
        seconds: Second texts of pairs, or None.
        classes: The labels, sorted.
        targets: int [texts], the position of each text's label in `classes`.
        train, dev, test: Positions of texts.
    """

    name: str
    source: str
    texts: list[str]
    seconds: list[str] | None
    classes: list[str]
    targets: np.ndarray
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray

    @property
    def cross_validated(self) -> bool:
        """Whether every text is tested by a classifier trained on other texts."""
        return len(self.test) == 0


_Collection = TypeVar("_Collection", PairSet, Task)


def open_pair_sets(named: Sequence[str], split: str | None = None) -> list[PairSet]:
    """Read sets of scored pairs.

    Args:
        named: Names of `SETS`, files, hub names, or `NAME=` followed by one of these.
        split: Split to read where a collection has splits; the test split if None.

    Raises:
        UserError: A set cannot be read, has fewer than three pairs or equal scores, or two sets share a name.
    """
    hub = {hub_name: name for name, hub_name in SETS.items()}

    if SICK_TEST.lower() in map(str.lower, named) and not os.path.exists(SICK_TEST):
        raise UserError(
            f"{SICK_TEST}, SentEval's {_SICK_TEST_PAIRS:,} test pairs, is on no hub",
            f"name SentEval's file: --data {SICK_TEST}={_SICK_FILE}.txt; SICK-R has mteb's 9,927 pairs",
        )

    def stem(collection: str) -> str:
        found = hub.get(collection) or _SUFFIXES.sub("", Path(collection).name)
        return SICK_TEST if found == _SICK_FILE else found

    return _open_named(named, "set of pairs", SETS, stem, lambda name, source: _read_pairs(name, source, split))


def open_tasks(named: Sequence[str]) -> list[Task]:
    """Read classification tasks; a file named like a task of `TASKS` is that task.

    Args:
        named: Names of `TASKS`, files, folders of files, hub names, or `NAME=` followed by one of these.

    Raises:
        UserError: A task cannot be read or has fewer than two classes, or two tasks share a name.
    """
    hubs = {name: task.hub for name, task in TASKS.items()}
    return _open_named(named, "task", hubs, lambda collection: Path(collection).name.split(".")[0], _read_task)


def _open_named(
    named: Sequence[str],
    kind: str,
    hubs: Mapping[str, str],
    stem: Callable[[str], str],
    read: Callable[[str, str], _Collection],
) -> list[_Collection]:
    """Return the collections behind the words of --data; `hubs` maps known names, `stem` names any other collection."""
    if not named:
        raise UserError(f"no {kind} is named", f"name some with --data: {' '.join(hubs)}, or files")

    def known(word: str) -> str | None:  # ignoring case and hyphens: stsb is STS-B
        plain = re.sub(r"[-_ ]", "", word).lower()
        return next((name for name in hubs if name.replace("-", "").lower() == plain), None)

    found: dict[str, _Collection] = {}
    for word in named:
        given, equals, collection = word.partition("=")
        if not equals or os.path.exists(word):
            given, collection = "", word
        name = given or stem(collection)
        name = known(name) or name
        if not os.path.exists(collection):
            collection = hubs.get(known(collection) or "", collection)
        if name in found:
            raise UserError(
                f"two {kind.split()[0]}s are called {name}: {found[name].source} and {collection}",
                f"give one of them another name: --data other={collection}",
            )
        found[name] = read(name, collection)
    return list(found.values())


def _read_pairs(name: str, collection: str, split: str | None) -> PairSet:
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
    if name == "SICK-R" and len(scores) == _SICK_TEST_PAIRS:
        log.warning("%s holds SentEval's %d test pairs; tables call it %s", records.source, len(scores), SICK_TEST)
        name = SICK_TEST
    return PairSet(name, records.source, numbers, (first, second), np.array(scores), digest.hexdigest())


def _read_task(name: str, collection: str) -> Task:
    known = TASKS.get(name)
    rows: list[LabelledText] = []
    for records, split in _sources(collection, known):
        for number, row in records.numbered():
            if rows and (row.second is None) != (rows[0].second is None):
                raise UserError(f"{records.where(number)}: some rows have one text and some two", "give all the same")
            rows.append(LabelledText(row.text, row.second, row.label, split) if split else row)
    classes = sorted({row.label for row in rows})
    if len(classes) < 2:
        raise UserError(
            f"{collection} has {len(rows)} texts of {len(classes)} classes", "a classifier needs two or more"
        )
    positions = {label: i for i, label in enumerate(classes)}
    train, dev, test = _split(collection, [row.split for row in rows], known)
    return Task(
        name,
        collection,
        [row.text for row in rows],
        None if rows[0].second is None else [row.second or "" for row in rows],
        classes,
        np.array([positions[row.label] for row in rows]),
        train,
        dev,
        test,
    )


def _sources(collection: str, known: _SentEvalTask | None) -> Iterator[tuple[Records[LabelledText], str]]:
    """The collections of a task, each with its split, or an empty string where a column names the split."""
    path = Path(collection)
    if path.is_dir():
        parts = sorted(file for file in path.iterdir() if file.name.split(".")[0] in (*_TRAIN, *_DEV, *_TEST))
        if parts:
            yield from ((open_labelled(str(file)), file.name.split(".")[0]) for file in parts)
            return
    if os.path.exists(collection) or known is None:
        yield open_labelled(collection), ""
        return
    yield from ((open_labelled(collection, split=split), split) for split in known.splits)


def _split(source: str, splits: list[str], known: _SentEvalTask | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of the training, validation and test texts."""
    empty, everything = np.array([], dtype=int), np.arange(len(splits))
    if known is not None and known.pooled:
        return everything, empty, empty
    names = np.array([split.lower() for split in splits])
    train, dev, test = (np.flatnonzero(np.isin(names, part)) for part in (_TRAIN, _DEV, _TEST))
    if not len(test) and not any(splits):
        if known is not None:
            raise UserError(
                f"{source} does not say which texts are for training and which for testing",
                "add a column split with train and test, or give a folder with train.tsv and test.tsv",
            )
        return everything, empty, empty
    if not len(train) or not len(test):
        found = ", ".join(f"{split or 'none'} {count}" for split, count in Counter(splits).items())
        raise UserError(
            f"{source} needs texts of the splits train and test, it has {found}", "correct its column split"
        )
    if known is not None and known.dev_trains:
        train, dev = np.sort(np.concatenate([train, dev])), empty
    return train, dev, test
