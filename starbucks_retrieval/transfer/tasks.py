"""Classification tasks: the seven of SentEval by name, and files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from starbucks_retrieval.data.pairs import LabelledText, open_labelled
from starbucks_retrieval.data.records import Records
from starbucks_retrieval.errors import UserError

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


def open_tasks(named: Sequence[str]) -> list[Task]:
    """Read classification tasks; a file named like a task of `TASKS` is that task.

    Args:
        named: Names of `TASKS`, files, folders of files, hub names, or `NAME=` followed by one of these.

    Raises:
        UserError: A task cannot be read or has fewer than two classes, or two tasks share a name.
    """
    if not named:
        raise UserError("no task is named", f"name some with --data: {' '.join(TASKS)}, or files")
    tasks: dict[str, Task] = {}
    for word in named:
        name, collection = _name_and_collection(word)
        if name in tasks:
            raise UserError(
                f"two tasks are called {name}: {tasks[name].source} and {collection}",
                f"give one of them another name: --data other={collection}",
            )
        tasks[name] = _read(name, collection)
    return list(tasks.values())


def _name_and_collection(word: str) -> tuple[str, str]:
    given, equals, collection = word.partition("=")
    if not equals or os.path.exists(word):
        given, collection = "", word
    stem = given or Path(collection).name.split(".")[0]
    known = None if os.path.exists(collection) else _known(collection)
    return _known(stem) or stem, TASKS[known].hub if known else collection


def _known(word: str) -> str | None:
    """The spelling of the table, ignoring case and hyphens: sst-2 is SST2."""
    plain = word.upper().replace("-", "")
    return plain if plain in TASKS else None


def _read(name: str, collection: str) -> Task:
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
