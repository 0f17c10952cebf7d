"""The description of a store: its content, how it was made, and what must agree between stores."""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import Count, check_value
from starbucks_retrieval.sizes import Size

FORMAT = "starbucks_retrieval.store"
VERSION = 2
_OPTIONAL = {"space", "lineage", "shared_space"}  # added by version 2

# For information only; a path spelled in another way does not make it another job.
_INFORMATIVE = ("model_name", "data_name", "provenance")
# Queries and passages must share these, or their inner product means nothing.
_GEOMETRY = ("pooling", "normalize")
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
    store_dtype: str  # "float16" | "float32"
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

    def __post_init__(self) -> None:
        if self.kind not in ("passages", "queries"):
            raise UserError(f"a store holds passages or queries, not {self.kind!r}", "name one of the two as its kind")
        if self.store_dtype not in ("float16", "float32"):
            raise UserError(f"--store_dtype {self.store_dtype} is unknown", "use float16 or float32")
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
        return VERSION if any(getattr(self, name) for name in _OPTIONAL) else 1

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
        """Read the result of `to_json`; `name` names the file in errors."""
        hint = "delete the folder and encode again"
        fields = {entry.name for entry in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) | _OPTIONAL != fields:
            raise UserError(f"{name} is damaged: its spec lacks a key, or has an unknown one", hint)
        kinds = typing.get_type_hints(cls, include_extras=True) | {"size": str, "lineage": list[str] | tuple[str, ...]}
        for key, value in values.items():
            check_value(value, kinds[key], f"{name} is damaged: {key}", hint)
        try:
            read = {"size": Size.parse(values["size"]), "lineage": tuple(values.get("lineage", ()))}
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


def check_same(queries: StoreSpec, passages: StoreSpec) -> None:
    """Check that queries and passages can be scored against each other.

    Args:
        queries: The spec of the queries. Its `passage_size` is the size that the passages must have.
        passages: The spec of the passages.

    Raises:
        UserError: The sizes do not match, the fingerprints are of different models, or pooling or normalize differs;
            the message names the difference.
    """
    if not comparable_layers(queries, passages):
        if queries.passage_size != passages.size:
            raise _other_size(queries, passages)
        _check_model(queries, passages)
    elif queries.size.dim != passages.size.dim:
        raise UserError(
            f"queries and passages differ in dim: {queries.size} and {passages.size}",
            "layers of this model may differ, dims may not: take one dim for both",
        )
    for name in _GEOMETRY:
        left, right = getattr(queries, name), getattr(passages, name)
        if left != right:
            what = f"queries and passages differ in {name}: {left!r} and {right!r}"
            raise UserError(what, "encode both with one model, at one size")


def comparable_layers(queries: StoreSpec, passages: StoreSpec) -> bool:
    """Return whether projections brought two different layers into one space, so that their embeddings are comparable.

    Args:
        queries: The spec of the queries.
        passages: The spec of the passages; its dim is not looked at.
    """
    same_space = bool(queries.shared_space) and queries.shared_space == passages.shared_space
    return same_space and queries.size.layer != passages.size.layer


def _other_size(queries: StoreSpec, passages: StoreSpec) -> UserError:
    if queries.size.dim == passages.size.dim and (queries.shared_space or passages.shared_space):
        spaces = [spec.shared_space or "none" for spec in (queries, passages)]
        return UserError(
            f"queries at {queries.size} and passages at {passages.size} are not in one space: {' and '.join(spaces)}",
            "encode both with one model that starbucks fit made, or at one layer",
        )
    if queries.space is None:
        return UserError(
            f"queries and passages differ in size: {queries.size} and {passages.size}",
            "encode both with one model, at one size; passages of another layer need a model that was trained for them "
            "or that starbucks fit made",
        )
    wanted = queries.passage_size
    return UserError(
        f"queries at {queries.size} of this model are scored against passages at {wanted}, these are at {passages.size}",
        f"encode the passages at {wanted}, or use other queries",
    )


def _check_model(queries: StoreSpec, passages: StoreSpec) -> None:
    shallow, deep = sorted((queries, passages), key=lambda spec: spec.size.layer)
    fingerprint = deep.fingerprint
    if shallow.size.layer < deep.size.layer:
        if len(deep.lineage) < shallow.size.layer:
            raise UserError(
                f"the {deep.kind} at {deep.size} do not record the fingerprints of lower layers, so they cannot be "
                f"compared with the {shallow.kind} at {shallow.size}",
                f"encode the {deep.kind} again with the model of the {shallow.kind}",
            )
        fingerprint = deep.lineage[shallow.size.layer - 1]
    if same_fingerprint(shallow.fingerprint, fingerprint):
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


def _show(value: Any) -> str:
    return str(value) if isinstance(value, Size) else repr(value)
