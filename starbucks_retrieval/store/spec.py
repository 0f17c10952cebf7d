"""The description of a store: its content, how it was made, and what must agree between stores."""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import Count, check_value
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.dtypes import QUANTISED, STORE_DTYPES, Quantiser

FORMAT = "starbucks_retrieval.store"
VERSION = 3
SCALES = ("scale", "offset")  # of a quantised store; added by version 3
_OPTIONAL = {"space", "lineage", "shared_space", *SCALES}  # the others were added by version 2

# For information only; a path spelled in another way does not make it another job.
_INFORMATIVE = ("model_name", "data_name", "provenance")
# A digest of the weights and, since 0.2, one of the settings; an imported store has any other text.
_FINGERPRINT = re.compile(r"([0-9a-f]{32})(:[0-9a-f]{16})?")


@dataclass(frozen=True)
class StoreSpec:
    """One encoding job at one size.

    Attributes:
        kind: "passages" or "queries".
        separator: Text between title and text of a passage.
        max_length: Tokens of a text at most; 0 where it is not known.
        fingerprint: Identifies the weights and settings of the model up to `size.layer`.
        data_digest: Identifies the ids and texts.
        data_count: Rows of the whole corpus, or of all queries.
        shard_size: Rows of a shard.
        parts: Number of jobs that share the corpus; this store holds the consecutive rows of one of them.
        part: The job, counted from 0.
        space: For a model whose queries and passages use different layers: the layer of the passages that these
            queries are scored against.
        lineage: For the same models: the fingerprints of the layers below.
        shared_space: For a model with projections: the space in which embeddings of all its layers are comparable; equal
            for equal maps, empty for other models.
        scale: Of a quantised store, int8 or binary: the scales of its `Quantiser`, one for each dimension.
        offset: Likewise, its offsets.

    Raises:
        UserError: A value is impossible.
    """

    kind: str  # "passages" | "queries"
    size: Size
    pooling: str
    normalize: bool
    prefix: str
    separator: str
    max_length: Count
    fingerprint: str
    compute_dtype: str
    store_dtype: str  # one of STORE_DTYPES
    data_digest: str
    data_count: Count
    shard_size: Count = 16384
    parts: Count = 1
    part: Count = 0
    model_name: str = ""
    data_name: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    space: Count | None = None
    lineage: tuple[str, ...] = ()
    shared_space: str = ""
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("passages", "queries"):
            raise UserError(f"a store holds passages or queries, not {self.kind!r}", "name one of the two as its kind")
        if self.store_dtype not in STORE_DTYPES:
            raise UserError(f"--store_dtype {self.store_dtype} is unknown", f"use one of {', '.join(STORE_DTYPES)}")
        wanted = self.size.dim if self.store_dtype in QUANTISED else 0
        if (len(self.scale), len(self.offset)) != (wanted, wanted) or not all(0 < one < np.inf for one in self.scale):
            raise UserError(
                f"{self.store_dtype} at {self.size} needs {wanted} scales above 0 and as many offsets",
                "calibrate them on vectors, as StoreSpec.quantised does",
            )
        if self.shard_size < 1:
            raise UserError(f"--shard_size {self.shard_size} is below 1", "use 16384, for example")
        if self.data_count < 1:
            raise UserError(f"there are no {self.kind} to store", "check the data")
        if not 0 <= self.part < self.parts:
            raise UserError(
                f"--dataset_shard_index {self.part} is not one of {self.parts} parts",
                f"use an index from 0 to {max(self.parts, 1) - 1}, or raise --dataset_number_of_shards",
            )
        if self.rows < 1:
            raise UserError(
                f"{self.data_count} {self.kind} cannot be split into {self.parts} parts",
                f"lower --dataset_number_of_shards to {self.data_count} or less",
            )

    @property
    def passage_size(self) -> Size:
        """The size of the passages that these queries are scored against; for passages, their own size."""
        return Size(self.space or self.size.layer, self.size.dim)

    @property
    def version(self) -> int:
        """The lowest version of the format that can hold this."""
        if self.scale:
            return VERSION
        return 2 if any(getattr(self, name) for name in _OPTIONAL) else 1

    @cached_property
    def quantiser(self) -> Quantiser | None:
        """Turns vectors into the stored codes; None for a store of floating-point numbers."""
        if not self.scale:
            return None
        return Quantiser(self.store_dtype, np.array(self.scale, np.float32), np.array(self.offset, np.float32))

    def quantised(self, store_dtype: str, sample: np.ndarray) -> StoreSpec:
        """Return the same job with quantised vectors.

        Args:
            store_dtype: A name of `QUANTISED`; any other changes only the type.
            sample: Vectors [rows, dim] to learn scales and offsets from.

        Raises:
            UserError: The type is unknown, or no row of the sample is finite.
        """
        if store_dtype not in QUANTISED:
            return dataclasses.replace(self, store_dtype=store_dtype, scale=(), offset=())
        found = Quantiser.calibrate(store_dtype, sample)
        scale, offset = tuple(found.scale.tolist()), tuple(found.offset.tolist())
        return dataclasses.replace(self, store_dtype=store_dtype, scale=scale, offset=offset)

    @property
    def first_row(self) -> int:
        """The row of the whole corpus that is row 0 of this store."""
        return part_rows(self.data_count, self.parts, self.part)[0]

    @property
    def rows(self) -> int:
        """The number of rows of this store."""
        start, stop = part_rows(self.data_count, self.parts, self.part)
        return stop - start

    @property
    def shards(self) -> int:
        """The number of shards of this store."""
        return -(-self.rows // self.shard_size)

    def shard_rows(self, shard: int) -> tuple[int, int]:
        """Return the rows [start, stop) of a shard, counted from the start of this store."""
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping, which `from_json` reads."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        absent = {name for name in _OPTIONAL if not values[name]}  # so that version 0.1 reads the rest
        values = {name: value for name, value in values.items() if name not in absent}
        return values | {"size": str(self.size)}

    @classmethod
    def from_json(cls, values: Any, name: str) -> StoreSpec:
        """Read the result of `to_json`.

        Args:
            values: The parsed JSON; `space`, `lineage`, `shared_space`, `scale` and `offset` may be absent.
            name: Names the file in errors.

        Raises:
            UserError: A key is missing or unknown, or a value has another type or is impossible.
        """
        hint = "delete the folder and encode again"
        fields = {entry.name for entry in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) | _OPTIONAL != fields:
            raise UserError(f"{name} is damaged: its spec lacks a key, or has an unknown one", hint)
        numbers = list[float] | tuple[float, ...]
        lists = {"lineage": list[str] | tuple[str, ...], "scale": numbers, "offset": numbers}
        kinds = typing.get_type_hints(cls, include_extras=True) | {"size": str} | lists
        for key, value in values.items():
            check_value(value, kinds[key], f"{name} is damaged: {key}", hint)
        try:
            read = {"size": Size.parse(values["size"])} | {name: tuple(values.get(name, ())) for name in lists}
            return cls(**(values | read))
        except UserError as error:
            raise UserError(f"{name} is damaged: {error.what}", hint) from None


def part_rows(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return the rows [start, stop) of one part when `count` rows are split into consecutive parts of nearly equal length.

    Example:
        >>> [part_rows(10, 3, part) for part in range(3)]
        [(0, 3), (3, 6), (6, 10)]
    """
    return count * part // parts, count * (part + 1) // parts


def job_difference(old: StoreSpec, new: StoreSpec, ignore: tuple[str, ...] = ()) -> str | None:
    """Return the first field in which two jobs differ, with both values, or None for the same job.

    Args:
        old: The job of a store that exists.
        new: The job to compare with it.
        ignore: Names of fields that may differ. `model_name`, `data_name` and `provenance` always may.

    Returns:
        Text for a message, such as `pooling is 'cls' there, 'mean' here`: "there" is `old`, "here" is `new`.
    """
    names = [entry.name for entry in dataclasses.fields(StoreSpec) if entry.name not in _INFORMATIVE + ignore]
    for name in names:
        left, right = getattr(old, name), getattr(new, name)
        if not agree(name, left, right):
            return f"{name} is {_show(left)} there, {_show(right)} here"
    return None


def same_fingerprint(left: str, right: str) -> bool:
    """Return whether two fingerprints can be of one model.

    Args:
        left: A fingerprint: 32 hex digits for the weights and, since 0.2, a colon and 16 for the settings. An imported
            store has any other text.
        right: The other one. If one of the two lacks the settings, as in version 0.1, only the weights are compared.

    Example:
        >>> weights = "0123456789abcdef" * 2
        >>> same_fingerprint(weights, f"{weights}:0123456789abcdef")
        True
    """
    one, other = _FINGERPRINT.fullmatch(left), _FINGERPRINT.fullmatch(right)
    if one and other and not (one[2] and other[2]):
        return one[1] == other[1]
    return left == right


def agree(name: str, left: Any, right: Any) -> bool:
    """Return whether two values of a field agree.

    Args:
        name: The name of a field of StoreSpec. Values of `fingerprint` are compared by `same_fingerprint`.
        left: One value.
        right: The other value.
    """
    return same_fingerprint(left, right) if name == "fingerprint" else left == right


def _show(value: Any) -> str:
    return str(value) if isinstance(value, Size) else repr(value)
