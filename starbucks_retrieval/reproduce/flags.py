"""The flags of the stages that rows and scales name, so that a misspelled one is refused before any job runs.

The names come from the dataclasses behind the parsers, and those of transformers from its source: torch is not imported.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from functools import cache
from typing import Any

from starbucks_retrieval.cli.checks import training_flags
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate import EvaluateArguments
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.grid import EncodingArguments, GridArguments
from starbucks_retrieval.pretrain import PretrainArguments
from starbucks_retrieval.reproduce.jobs import LIBRARY
from starbucks_retrieval.reproduce.schema import Row, Scale, Table
from starbucks_retrieval.reproduce.sentence_transformers import SentenceTransformersArguments
from starbucks_retrieval.search import SearchArguments
from starbucks_retrieval.sts import StsArguments
from starbucks_retrieval.train import TrainArguments

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "pretrain": (PretrainArguments,),
    "fit": (FitArguments,),
    "train": (TrainArguments,),
    LIBRARY: (SentenceTransformersArguments,),
    "grid": (GridArguments, EncodingArguments),
    "sts": (StsArguments,),
    "encode": (EncodeArguments,),
    "search": (SearchArguments,),
    "evaluate": (EvaluateArguments,),
}
_OF_TRANSFORMERS = ("pretrain", "train")  # stages that take the flags of its TrainingArguments too
_COMMON = ("seed",)
_KEYS = {"pretrain": ("corpus",), LIBRARY: ("like",)}  # keys of a file that are no flags


@cache
def known_flags(stage: str) -> frozenset[str]:
    """Return the names of the flags of a stage; none for a stage whose flags need transformers, where that is missing.

    Args:
        stage: The stage of a job.

    Example:
        >>> sorted({"pooling", "learning_rate", "learning_rat"} & known_flags("train"))
        ['learning_rate', 'pooling']
    """
    of_library = training_flags() if stage in _OF_TRANSFORMERS else ()
    if stage in _OF_TRANSFORMERS and not of_library:
        return frozenset()
    own = (field.name for kind in _ARGUMENTS[stage] for field in dataclasses.fields(kind))
    return frozenset((*own, *of_library, *_COMMON))


def check_flags(where: str, stage: str, flags: Iterable[str]) -> None:
    """Check that a stage has some flags.

    Args:
        where: The file and the place in it, for the message.
        stage: The stage of a job.
        flags: Names, as a file of a table or scale has them.

    Raises:
        UserError: A name is no flag of the stage; the hint has the nearest one.
    """
    known, keys = known_flags(stage), _KEYS.get(stage, ())
    for name in flags:
        if known and name not in known and name not in keys:
            near = "".join(f"write {one}, or " for one in difflib.get_close_matches(name, [*known, *keys], 1))
            program = f"python -m starbucks_retrieval.{stage}" if stage == LIBRARY else f"starbucks {stage}"
            raise UserError(f"{where}: {stage} has no flag {name!r}", f"{near}see {program} --help")


def check_row(where: str, row: Row) -> None:
    """Raise UserError if a row has a flag of pretrain, fit or train that its stage does not have.

    Args:
        where: The file and the row, for the message.
        row: The row.
    """
    for flags in row.pretrain:
        check_flags(where, "pretrain", flags)
    check_flags(where, "fit", row.fit or ())
    for flags in row.train.values():
        check_flags(where, LIBRARY if "loss" in flags else "train", flags)


def check_scale(where: str, name: str, scale: Scale, table: Table) -> None:
    """Raise UserError if a scale, or the measuring of a row at this scale, has a flag that its stage does not have.

    Args:
        where: The file of the table, for the message.
        name: The name of the scale.
        scale: The scale, with the changes of the table.
        table: The table.
    """
    place = f"{where}: scale {name}"
    check_flags(f"{place}: pretrain", "pretrain", scale.pretrain)
    check_flags(f"{place}: fit", "fit", scale.fit)
    for task, flags in scale.train.items():
        check_flags(f"{place}: train: {task}", "train", flags)
    for text, flags in scale.texts.items():
        check_flags(f"{place}: texts: {text}", "pretrain", flags)
    for column in table.columns:
        if (data := scale.sets.get(column.set)) is None or data.blocked:
            continue
        check_flags(f"{place}: sets: {column.set}: train", "train", data.train)
        of_set = {**scale.measure.get(data.task, {}), **data.flags}
        for row in (row for row in table.rows if not row.blocked):
            stage = "sts" if data.task == "sts" and "measure_cost" not in of_set | row.measure else "grid"
            check_flags(f"{where}: row {row.name!r}: measure", stage, row.measure)
            check_flags(f"{place}: sets: {column.set}", stage, of_set)
