"""What a store holds and how it was made: all that must agree between two runs, or between queries and passages."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

FORMAT = "starbucks_retrieval.store"
VERSION = 2
_OPTIONAL = {"space", "lineage"}  # what version 2 added

# Told for the record; a path spelled in another way does not make it another job.
_INFORMATIVE = ("model_name", "data_name", "provenance")
# What queries and passages must share for their inner product to mean anything.
_GEOMETRY = ("pooling", "normalize")
# Digits of the weights and, since 0.2, of the settings; an imported store has any other text.
_FINGERPRINT = re.compile(r"([0-9a-f]{32})(:[0-9a-f]{16})?")


@dataclass(frozen=True)
class StoreSpec:
    """One encoding job at one size.

    `data_count` counts the rows of the whole corpus (or of all queries); with `parts` > 1 this store holds the
    consecutive rows of part `part` (counted from 0) only. `fingerprint` identifies the model up to `size.layer`.
    Of a model whose queries and passages are of different layers, `space` is the layer of the passages that these
    queries are scored against, and `lineage` are the fingerprints of the layers below. Raises UserError for impossible
    values.
    """

    kind: str  # "passages" | "queries"
    size: Size
    pooling: str
    normalize: bool
    prefix: str
    separator: str
    max_length: int
    fingerprint: str
    compute_dtype: str
    store_dtype: str  # "float16" | "float32"
    data_digest: str
    data_count: int
    shard_size: int = 16384
    parts: int = 1
    part: int = 0
    model_name: str = ""
    data_name: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    space: int | None = None
    lineage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("passages", "queries"):
            raise UserError(f"a store holds passages or queries, not {self.kind!r}", "name one of the two as its kind")
        if self.store_dtype not in ("float16", "float32"):
            raise UserError(f"--store_dtype {self.store_dtype} is not known", "take float16 or float32")
        if self.shard_size < 1:
            raise UserError(f"--shard_size {self.shard_size} is below 1", "take 16384, say")
        if self.data_count < 1:
            raise UserError(f"there are no {self.kind} to store", "check the data")
        if not 0 <= self.part < self.parts:
            raise UserError(
                f"--dataset_shard_index {self.part} is not one of {self.parts} parts",
                f"take an index from 0 to {max(self.parts, 1) - 1}, or raise --dataset_number_of_shards",
            )
        if self.rows < 1:
            raise UserError(
                f"{self.data_count} {self.kind} cannot be cut into {self.parts} parts",
                f"lower --dataset_number_of_shards to {self.data_count} or less",
            )

    @property
    def passage_size(self) -> Size:
        """The size of the passages that these vectors, if they are queries', are scored against."""
        return Size(self.space or self.size.layer, self.size.dim)

    @property
    def version(self) -> int:
        """The version of the format that this needs."""
        return VERSION if any(getattr(self, name) for name in _OPTIONAL) else 1

    @property
    def first_row(self) -> int:
        """The row of the whole data that is row 0 of this store."""
        return part_rows(self.data_count, self.parts, self.part)[0]

    @property
    def rows(self) -> int:
        """How many rows this store holds."""
        start, stop = part_rows(self.data_count, self.parts, self.part)
        return stop - start

    @property
    def shards(self) -> int:
        """How many shards this store has."""
        return -(-self.rows // self.shard_size)

    def shard_rows(self, shard: int) -> tuple[int, int]:
        """First row and the row after the last of a shard, counted from the start of this store."""
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping; `from_json` reads it back."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        absent = {name for name in _OPTIONAL if not values[name]}  # so that version 0.1 reads the rest
        values = {name: value for name, value in values.items() if name not in absent}
        return values | {"size": str(self.size)}

    @classmethod
    def from_json(cls, values: Any, where: str) -> StoreSpec:
        """Read what `to_json` wrote; `where` names the file in errors."""
        names = {entry.name for entry in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) | _OPTIONAL != names:
            raise UserError(f"{where} is damaged", "delete the folder and encode again")
        read = {"size": Size.parse(values["size"]), "lineage": tuple(values.get("lineage", ()))}
        return cls(**(values | read))


def part_rows(count: int, parts: int, part: int) -> tuple[int, int]:
    """The rows [start, stop) of one part when `count` rows are cut into consecutive parts of nearly equal length."""
    return count * part // parts, count * (part + 1) // parts


def job_difference(old: StoreSpec, new: StoreSpec, ignore: tuple[str, ...] = ()) -> str | None:
    """The first field in which two jobs differ, as `name: old, not new`; None for the same job."""
    names = [entry.name for entry in dataclasses.fields(StoreSpec) if entry.name not in _INFORMATIVE + ignore]
    return _difference(old, new, names)


def same_fingerprint(left: str, right: str) -> bool:
    """Whether two fingerprints are of one model, as far as both tell: those of version 0.1 know the weights alone."""
    ours, theirs = _FINGERPRINT.fullmatch(left), _FINGERPRINT.fullmatch(right)
    if ours and theirs and not (ours[2] and theirs[2]):
        return ours[1] == theirs[1]
    return left == right


def agree(name: str, left: Any, right: Any) -> bool:
    """Whether a field has one meaning in two specs."""
    return same_fingerprint(left, right) if name == "fingerprint" else left == right


def check_same(queries: StoreSpec, passages: StoreSpec) -> None:
    """Raise UserError, with the difference named, unless queries and passages lie in one space."""
    if queries.passage_size != passages.size:
        raise _other_size(queries, passages)
    _check_model(queries, passages)
    for name in _GEOMETRY:
        left, right = getattr(queries, name), getattr(passages, name)
        if left != right:
            what = f"queries and passages differ in {name}: {left!r} and {right!r}"
            raise UserError(what, "encode both with one model, at one size")


def _other_size(queries: StoreSpec, passages: StoreSpec) -> UserError:
    if queries.space is None:
        return UserError(
            f"queries and passages differ in size: {queries.size} and {passages.size}",
            "encode both with one model, at one size; passages of another depth take a model that was trained with them",
        )
    wanted = queries.passage_size
    return UserError(
        f"queries at {queries.size} of this model are scored against passages at {wanted}, these are at {passages.size}",
        f"encode the passages at {wanted}, or name other queries",
    )


def _check_model(queries: StoreSpec, passages: StoreSpec) -> None:
    shallow, deep = sorted((queries, passages), key=lambda spec: spec.size.layer)
    there = deep.fingerprint
    if shallow.size.layer < deep.size.layer:
        if len(deep.lineage) < shallow.size.layer:
            raise UserError(
                f"the {deep.kind} at {deep.size} do not tell what lies below them, so whether they are of the "
                f"model of the {shallow.kind} at {shallow.size}",
                f"encode the {deep.kind} again with the model that the {shallow.kind} are of",
            )
        there = deep.lineage[shallow.size.layer - 1]
    if same_fingerprint(shallow.fingerprint, there):
        return
    if queries.model_name != passages.model_name:
        what = f"queries and passages come from different models: {_model(queries)} and {_model(passages)}"
    else:
        what = (
            f"queries and passages come from different weights or settings of {passages.model_name or 'one model'}: "
            f"fingerprints {queries.fingerprint} and {passages.fingerprint}"
        )
    raise UserError(what, "encode both with one model, at one size")


def _model(spec: StoreSpec) -> str:
    return f"{spec.model_name or 'unnamed'} ({spec.fingerprint})"


def _difference(old: StoreSpec, new: StoreSpec, names: list[str]) -> str | None:
    for name in names:
        left, right = getattr(old, name), getattr(new, name)
        if not agree(name, left, right):
            return f"{name} is {_show(left)} there, {_show(right)} here"
    return None


def _show(value: Any) -> str:
    return str(value) if isinstance(value, Size) else repr(value)
