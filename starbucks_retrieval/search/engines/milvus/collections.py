"""Milvus collections and the metadata in their properties: all sizes together or, where fields are few, one each."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import Count, Length, Positive, parse_json
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec
from starbucks_retrieval.store.spec import agree, same_fingerprint

ROW, DOCID = "row", "docid"  # fields of a collection
METADATA, INDEX = "starbucks", "starbucks_index"  # properties of a collection
_FORMAT = "starbucks_retrieval.milvus"
_VERSION = 1
_PARTITIONS = 512  # servers take 1024 or 4096 a collection


@dataclass(frozen=True)
class FieldMetadata:
    """The vector field of one size.

    Attributes:
        fingerprint: Identifies the weights and settings of the model up to the layer of the size.
        largest_norm: A length that no vector exceeds.
    """

    fingerprint: str
    largest_norm: Length


@dataclass(frozen=True)
class CollectionMetadata:
    """The passages of a collection and how they were encoded; stored in its properties.

    Attributes:
        fields: One for each size.
        pooling: How the passages were pooled.
        normalize: Whether they were normalised.
        data_digest: Digest of the corpus.
        data_count: Passages of the corpus.
        first_row: Row of the corpus with which the rows begin.
        count: Rows.
        chunk: Rows of a partition.
        id_bytes: Length of the longest docid.
    """

    fields: dict[Size, FieldMetadata]
    pooling: str
    normalize: bool
    data_digest: str
    data_count: Count
    first_row: Count
    count: Count
    chunk: Positive
    id_bytes: Positive

    @classmethod
    def of(cls, stores: Mapping[Size, EmbeddingStore]) -> CollectionMetadata:
        """Describe stores that hold the same passages at several sizes."""
        store = next(iter(stores.values()))
        spec = store.spec
        shards = -(-store.count // spec.shard_size)
        longest = 1
        for start in range(0, store.count, 2**16):
            ids, _ = store.consecutive(start, min(start + 2**16, store.count))
            longest = max(longest, max(len(docid.encode()) for docid in ids))
        return cls(
            fields={
                size: FieldMetadata(one.spec.fingerprint, one.largest_norm) for size, one in sorted(stores.items())
            },
            pooling=spec.pooling,
            normalize=spec.normalize,
            data_digest=spec.data_digest,
            data_count=spec.data_count,
            first_row=store.first_row,
            count=store.count,
            chunk=spec.shard_size * -(-shards // _PARTITIONS),
            id_bytes=longest,
        )

    def only(self, size: Size) -> CollectionMetadata:
        """Return the metadata of the same passages at one size alone."""
        return dataclasses.replace(self, fields={size: self.fields[size]})

    def partitions(self) -> list[tuple[str, int, int]]:
        """Return name, first row and row after the last of each partition."""
        starts = range(0, self.count, self.chunk)
        stops = [min(start + self.chunk, self.count) for start in starts]
        return [(f"rows_{start}_{stop}", start, stop) for start, stop in zip(starts, stops)]

    def check(self, queries: StoreSpec) -> None:
        """Raise UserError unless the queries were encoded as the passages were."""
        field = self.fields[queries.size]
        for name, loaded, given in [
            ("fingerprint", field.fingerprint, queries.fingerprint),
            ("pooling", self.pooling, queries.pooling),
            ("normalize", self.normalize, queries.normalize),
        ]:
            if not agree(name, loaded, given):
                raise UserError(
                    f"the passages in Milvus and the queries differ in {name}: {loaded!r} and {given!r}",
                    "encode both with one model, and load the passages under another --collection",
                )

    def difference(self, other: CollectionMetadata) -> str | None:
        """Describe the first difference to other metadata; None if there is none."""
        for entry in dataclasses.fields(self):
            ours, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if entry.name == "fields":
                if set(ours) != set(theirs):
                    return f"its sizes are {', '.join(map(str, ours))}, not {', '.join(map(str, theirs))}"
                for size, field in ours.items():
                    other_field = theirs[size]
                    same = same_fingerprint(field.fingerprint, other_field.fingerprint)
                    if not same or field.largest_norm != other_field.largest_norm:
                        return f"at {size} its model is {field}, not {other_field}"
            elif ours != theirs:
                return f"its {entry.name} is {ours!r}, not {theirs!r}"
        return None

    def dumps(self) -> str:
        """Return one line of JSON; `loads` reads it."""
        values = vars(self) | {
            "format": _FORMAT,
            "version": _VERSION,
            "fields": {str(size): dataclasses.asdict(field) for size, field in self.fields.items()},
        }
        return json.dumps(values, sort_keys=True)

    @classmethod
    def loads(cls, properties: Any, where: str) -> CollectionMetadata:
        """Read the metadata of a collection.

        Args:
            properties: What Milvus returns as the properties of the collection; one entry is the result of `dumps`.
            where: Names the collection in errors.

        Raises:
            UserError: This package, or this version of the format, did not write them.
        """
        try:
            written = properties[METADATA]
            values = parse_json(written if isinstance(written, str) else json.dumps(written), dict[str, Any], where)
            if (values.pop("format"), values.pop("version")) != (_FORMAT, _VERSION):
                raise ValueError
            sizes = {size: Size.parse(size) for size in values["fields"]}
            found = parse_json(json.dumps(values), _Written, where, extra="forbid")
            if -(-found.count // found.chunk) > _PARTITIONS:
                raise ValueError
            return cls(**vars(found) | {"fields": {sizes[size]: field for size, field in found.fields.items()}})
        except (KeyError, TypeError, ValueError, UserError):
            raise UserError(f"{where} was not loaded by this version", "name another --collection") from None


@dataclass(frozen=True)
class _Written(CollectionMetadata):
    fields: dict[str, FieldMetadata]  # type: ignore[assignment]


@dataclass(frozen=True)
class Collection:
    """One Milvus collection.

    Attributes:
        name: The name that the user gives, with the `field_name` of a size appended where each size has its own
            collection.
        metadata: Its passages.
        index: The index of all its fields; None until they are loaded and indexed.
    """

    name: str
    metadata: CollectionMetadata
    index: str | None


def field_name(size: Size) -> str:
    """Return the name of the vector field of a size.

    Example:
        >>> field_name(Size(6, 128))
        'layer6_dim128'
    """
    return f"layer{size.layer}_dim{size.dim}"


def check_name(collection: str) -> None:
    """Check that Milvus accepts a name.

    Args:
        collection: Up to 201 ASCII letters, digits and underscores, not starting with a digit. The collection of a
            single size appends its `field_name`.

    Raises:
        UserError: The name has another form.
    """
    if not re.fullmatch(r"[A-Za-z_]\w{0,200}", collection, re.ASCII):
        raise UserError(
            f"{collection!r} cannot name a Milvus collection", "use letters, digits and underscores, no digit first"
        )


def find_collections(connection: Connection, collection: str) -> list[Collection]:
    """Find the Milvus collections behind a name.

    Args:
        connection: Where to look.
        collection: The name that the user gives.

    Returns:
        The collection of that name, which holds all sizes; else one collection for each size, sorted by name; else an
        empty list.

    Raises:
        UserError: A collection was not loaded by this version, or Milvus refuses a call or does not answer.
    """
    if connection.call("has_collection", collection):
        return [_read(connection, collection)]
    per_size = re.compile(rf"{collection}_layer\d+_dim\d+")
    names = [name for name in sorted(connection.call("list_collections")) if per_size.fullmatch(name)]
    return [_read(connection, name) for name in names]


def make_collections(connection: Connection, collection: str, metadata: CollectionMetadata) -> list[Collection]:
    """Find or create the collections of the metadata.

    One collection holds all sizes. Where Milvus refuses so many vector fields, there is one collection for each size.
    Where collections of single sizes exist, only those of missing sizes are created.

    Args:
        connection: Where to look and create.
        collection: The name that the user gives.
        metadata: The passages and sizes to store.

    Returns:
        One collection, or one for each size in the order of `metadata.fields`. They may be empty or incomplete.

    Raises:
        UserError: A collection of that name holds other passages or sizes or was not loaded by this version, or Milvus
            refuses a call or does not answer.
    """
    found = find_collections(connection, collection)
    if not found:
        try:
            return [_create(connection, collection, metadata)]
        except UserError as error:
            if len(metadata.fields) == 1 or not re.search(r"vector field", error.what):
                raise
            log.info("this Milvus takes fewer than %d vector fields: one collection a size", len(metadata.fields))
    if found and found[0].name == collection:
        wanted = {collection: metadata}
    else:
        wanted = {f"{collection}_{field_name(size)}": metadata.only(size) for size in metadata.fields}
    for existing in found:
        if existing.name not in wanted:
            continue
        if difference := existing.metadata.difference(wanted[existing.name]):
            raise UserError(
                f"the collection {existing.name} holds something else: {difference}",
                "name another --collection, or drop this one",
            )
    by_name = {existing.name: existing for existing in found}
    return [by_name.get(name) or _create(connection, name, described) for name, described in wanted.items()]


def _read(connection: Connection, name: str) -> Collection:
    properties: Any = connection.call("describe_collection", name).get("properties") or {}
    metadata = CollectionMetadata.loads(properties, f"the collection {name} at {connection.shown}")
    return Collection(name, metadata, properties.get(INDEX))


def _create(connection: Connection, name: str, metadata: CollectionMetadata) -> Collection:
    from pymilvus import DataType

    schema = connection.schema()
    schema.add_field(ROW, DataType.INT64, is_primary=True)
    schema.add_field(DOCID, DataType.VARCHAR, max_length=metadata.id_bytes)
    for size in metadata.fields:
        schema.add_field(field_name(size), DataType.FLOAT_VECTOR, dim=size.dim)
    connection.call(
        "create_collection", name, schema=schema, properties={METADATA: metadata.dumps()}, consistency_level="Strong"
    )
    return Collection(name, metadata, None)
