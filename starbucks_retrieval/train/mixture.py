"""Mixtures of training data sets: their weights and settings, the flags of sampling and negatives, and the order of rows."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

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
        optional = [one.name for one in data_sets if one != DataSet(one.name)]
        if optional or self.sampling != "proportional" or self.same_source_batches:
            raise UserError(
                "weights, options and sampling of data sets belong to training with labels",
                "without labels, an equal number of texts is read from each source: drop them",
            )
        if self.guide_model_name_or_path:
            raise UserError("--guide_model_name_or_path belongs to training with labels", "drop it")


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The data sets of a run, as the sampler needs them.

    An epoch has as many rows as all data sets together. A data set's rows are used in passes without repetition, which
    continue from epoch to epoch, so all its rows are used equally often whatever its share is.

    Attributes:
        counts: Rows of each data set.
        weights: Their weights.
        exponent: The share of a data set is proportional to weight · rows^exponent.
        batch: Rows of a batch from one data set; 0 mixes the data sets.
    """

    counts: Sequence[int]
    weights: Sequence[float]
    exponent: float = 1.0
    batch: int = 0

    def __len__(self) -> int:
        """The number of rows of an epoch."""
        total = sum(self.counts)
        return total // self.batch * self.batch if self.batch else total

    @property
    def shares(self) -> np.ndarray:
        """The share of each data set, float64; they add up to 1.

        Example:
            >>> Mixture([100, 400], [1, 1], exponent=0.5).shares.round(3).tolist()
            [0.333, 0.667]
        """
        wanted = np.asarray(self.weights, np.float64) * np.asarray(self.counts, np.float64) ** self.exponent
        return wanted / wanted.sum()

    def check(self, names: Sequence[str]) -> None:
        """Raise UserError for a data set that is smaller than a batch from one data set."""
        for name, count in zip(names, self.counts):
            if count < self.batch:
                raise UserError(
                    f"{name} has {count} rows, fewer than the {self.batch} of a batch from one data set",
                    "lower the batch size, join it with another file, or drop --same_source_batches",
                )

    def order(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of an epoch.

        Args:
            seed: The seed.
            epoch: The epoch, from 0.

        Returns:
            For each row the pass over its data set, and its number over all data sets, both int64 [rows].
        """
        unit = self.batch or 1
        before, now = allocate(self.shares, len(self) // unit, epoch)
        starts = np.cumsum([0, *self.counts])
        passes, rows = [], []
        for number, count in enumerate(self.counts):
            first, stop = before[number] * unit, (before[number] + now[number]) * unit
            for one, chosen in self._passes(seed, number, count, int(first), int(stop)):
                passes.append(np.full(len(chosen), one))
                rows.append(starts[number] + chosen)
        joined = np.concatenate(passes), np.concatenate(rows)
        turn = np.random.default_rng([seed, epoch]).permutation(len(self) // unit)
        passes_in_order, rows_in_order = (found.reshape(-1, unit)[turn].reshape(-1) for found in joined)
        return passes_in_order, rows_in_order

    def _passes(self, seed: int, number: int, count: int, first: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (pass, rows) of a data set for its positions [first, stop) in the endless sequence of passes."""
        unit = self.batch or 1
        length = count // unit * unit  # a batch does not hold rows of two passes, which could be the same
        for one in range(first // length, -(-stop // length)):
            low, high = max(first - one * length, 0), min(stop - one * length, length)
            if not self.batch and (low, high) == (0, count):
                yield one, np.arange(count)  # the order is drawn for the whole epoch
                continue
            chosen = np.random.default_rng([seed, number, one]).permutation(count)[low:high]
            yield one, chosen if self.batch else np.sort(chosen)


def allocate(shares: np.ndarray, total: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Share the draws of an epoch, so that after each epoch every data set is within one draw of its share of all.

    Args:
        shares: The share of each data set; they add up to 1.
        total: Draws in an epoch.
        epoch: The epoch, from 0.

    Returns:
        The draws of each data set before the epoch and in it, int64 each.

    Example:
        >>> [allocate(np.array([0.75, 0.25]), 2, epoch)[1].tolist() for epoch in range(4)]
        [[2, 0], [1, 1], [2, 0], [1, 1]]
    """
    given = np.zeros(len(shares), np.int64)
    before, now = given, given
    for past in range(epoch + 1):
        before = given
        wanted = np.round(shares * total * (past + 1) - before, 6)  # a share is not whole by rounding errors alone
        now = np.floor(wanted.clip(min=0)).astype(np.int64)
        left = total - int(now.sum())
        order = np.argsort(now - wanted, kind="stable")
        if left > 0:
            now[order[:left]] += 1
        elif left < 0:
            now[[number for number in order[::-1] if now[number]][:-left]] -= 1
        given = before + now
    return before, now
