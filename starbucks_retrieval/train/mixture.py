"""Mixtures of training data sets: their weights, their own settings, and the flags of sampling and of negatives."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import parse_json


@dataclasses.dataclass(frozen=True)
class DataSet:
    """One of the data sets that training mixes.

    Attributes:
        name: A file, a folder, a short name or a name on the hub.
        weight: Multiplies its share of the training rows.
        query_prefix: Text before its queries in training; None: that of the model.
        passage_prefix: Text before its passages in training.
        train_group_size: Passages per query; None: that of the run.
        in_batch_negatives: Passages of other queries are negatives of its queries; None: as in the run.
        dataset_split: Its split; None: that of the run.
        corpus_path: Texts for rows that hold ids; None: those of the run.
    """

    name: str
    weight: float = 1.0
    query_prefix: str | None = None
    passage_prefix: str | None = None
    train_group_size: int | None = None
    in_batch_negatives: bool | None = None
    dataset_split: str | None = None
    corpus_path: str | None = None

    @classmethod
    def parse(cls, text: str) -> DataSet:
        """Read `name`, `name@weight`, or a JSON mapping of these attributes.

        Raises:
            UserError: The weight is no positive number, or the mapping has an unknown key or a wrong value.

        Example:
            >>> DataSet.parse("nq.jsonl@2").weight
            2.0
            >>> DataSet.parse('{"name": "nq.jsonl", "query_prefix": "question: "}').query_prefix
            'question: '
        """
        if text.lstrip().startswith("{"):
            return cls._from_mapping(text)
        name, at, weight = text.rpartition("@")
        if not at or Path(text).exists():
            return cls(text)
        try:
            return cls(name, _positive(float(weight)))
        except ValueError:
            raise UserError(
                f"{text}: the weight {weight!r} is not a number above 0",
                "write name@2 to use a data set twice as often, and leave out one that is not to be used",
            ) from None

    @classmethod
    def _from_mapping(cls, text: str) -> DataSet:
        found = parse_json(text, dict[str, Any], "the data set", 'write {"name": "a.jsonl", "weight": 2}')
        hints = typing.get_type_hints(cls)
        for key, value in found.items():
            if key not in hints:
                raise UserError(f"a data set has no option {key}", f"the options are {', '.join(hints)}")
            kinds = typing.get_args(hints[key]) or (hints[key],)
            is_number = float in kinds and isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number and type(value) not in kinds:
                expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
                raise UserError(f"{key} of a data set is {value!r}", f"it takes {expected}")
        if not found.get("name"):
            raise UserError(f"a data set has no name: {text}", 'write {"name": "a.jsonl", "weight": 2}')
        try:
            _positive(found.get("weight", 1))
        except OverflowError:  # an integer of 400 digits is no float
            raise UserError(f"{found['name']}: the weight is too large", "write a number such as 2") from None
        except ValueError:
            raise UserError(f"{found['name']}: the weight {found['weight']} is not above 0", "raise it") from None
        size = found.get("train_group_size")
        if size is not None and size < 1:
            raise UserError(f"{found['name']}: train_group_size {size} leaves no positive", "use at least 1")
        return cls(**found)

    @property
    def has_options(self) -> bool:
        """Whether it is more than a name."""
        return self != DataSet(self.name)


def _positive(weight: float) -> float:
    if not (weight > 0 and math.isfinite(weight)):
        raise ValueError
    return weight


@dataclasses.dataclass(kw_only=True)
class MixtureArguments:
    """Mixtures of data sets, and which passages are negatives."""

    sampling: Literal["proportional", "uniform", "temperature"] = flag(
        "proportional",
        "share of a data set: as its rows, equal, or as rows^(1/--sampling_temperature); each times its weight (name@2)",
        rare=True,
    )
    sampling_temperature: float | None = flag(
        None, "with --sampling temperature: 1 is proportional, large values are uniform (default: 2)", rare=True
    )
    same_source_batches: bool = flag(False, "all rows of a step come from one data set", rare=True)
    false_negative_margin: float | None = flag(
        None, "a negative that scores above the positive plus this number is left out (Qwen3-Embedding: 0.1)", rare=True
    )
    guide_model_name_or_path: str | None = flag(
        None,
        "an encoder whose scores decide that, in place of the model's own, as in GISTEmbed (margin 0 by default)",
        rare=True,
    )
    query_negatives: bool | None = flag(
        None, "other queries of the batch are negatives of a query (default: false)", rare=True
    )
    passage_negatives: bool | None = flag(
        None,
        "other queries' positives are negatives of a positive, as its scores with them (default: false)",
        rare=True,
    )

    @property
    def sampling_exponent(self) -> float:
        """The power of a data set's rows that its share is proportional to."""
        if self.sampling == "temperature":
            return 1 / (self.sampling_temperature or 2.0)
        return float(self.sampling == "proportional")

    def check_mixture(self, data_sets: Sequence[DataSet], labelled: bool) -> None:
        """Check these flags and the options of data sets against each other.

        Args:
            data_sets: The data sets.
            labelled: Whether the objective trains on queries with their passages.

        Raises:
            UserError: They contradict each other, or have no meaning without labels.
        """
        temperature = self.sampling_temperature
        if temperature is not None and self.sampling != "temperature":
            raise UserError("--sampling_temperature belongs to --sampling temperature", "add it, or drop the flag")
        if temperature is not None and not temperature > 0:
            raise UserError(f"--sampling_temperature {temperature} is not positive", "1 is proportional, 2 is usual")
        sizes = [one.name for one in data_sets if one.train_group_size is not None]
        if sizes and not self.same_source_batches:
            raise UserError(
                f"train_group_size of {sizes[0]}: queries of one batch need equally many passages",
                "add --same_source_batches true, or set --train_group_size for all",
            )
        if labelled:
            return
        optional = [one.name for one in data_sets if one.has_options]
        if optional or self.sampling != "proportional" or self.same_source_batches:
            raise UserError(
                "weights, options and sampling of data sets belong to training with labels",
                "without labels, an equal number of texts is read from each source: drop them",
            )
        if self.guide_model_name_or_path:
            raise UserError("--guide_model_name_or_path belongs to training with labels", "drop it")
