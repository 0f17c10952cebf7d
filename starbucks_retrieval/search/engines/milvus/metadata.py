"""What a collection holds, as written on it: enough to refuse what does not belong to it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec
from starbucks_retrieval.store.spec import agree, same_fingerprint

CARD, INDEX = "starbucks", "starbucks_index"  # properties of a collection
_FORMAT = "starbucks_retrieval.milvus"
_VERSION = 1
_PARTITIONS = 512  # servers take 1024 or 4096 a collection


@dataclass(frozen=True)
class Field:
    """One size: the fingerprint of the model up to its layer, and a length that no vector exceeds."""

    fingerprint: str
    largest_norm: float

    def agrees(self, other: Field) -> bool:
        """Whether both describe the same vectors, as far as their fingerprints tell."""
        return same_fingerprint(self.fingerprint, other.fingerprint) and self.largest_norm == other.largest_norm


@dataclass(frozen=True)
class CollectionMetadata:
    """The passages of a collection and how they were encoded; one `Field` a size.

    `count` rows from row `first_row` of the corpus; partitions of `chunk` rows each; no docid has more than `id_bytes`
    bytes.
    """

    fields: dict[Size, Field]
    pooling: str
    normalize: bool
    data_digest: str
    data_count: int
    first_row: int
    count: int
    chunk: int
    id_bytes: int

    @classmethod
    def of(cls, stores: Mapping[Size, EmbeddingStore]) -> CollectionMetadata:
        """Describe stores that hold the same passages."""
        store = next(iter(stores.values()))
        spec = store.spec
        shards = -(-store.count // spec.shard_size)
        longest = 1
        for start in range(0, store.count, 2**16):
            ids, _ = store.consecutive(start, min(start + 2**16, store.count))
            longest = max(longest, max(len(docid.encode()) for docid in ids))
        return cls(
            fields={size: Field(one.spec.fingerprint, one.largest_norm) for size, one in sorted(stores.items())},
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
        """The same passages at one size."""
        return dataclasses.replace(self, fields={size: self.fields[size]})

    def partitions(self) -> list[tuple[str, int, int]]:
        """Name, first row and row after the last of each partition."""
        starts = range(0, self.count, self.chunk)
        stops = [min(start + self.chunk, self.count) for start in starts]
        return [(f"rows_{start}_{stop}", start, stop) for start, stop in zip(starts, stops)]

    def check(self, queries: StoreSpec) -> None:
        """Raise UserError unless the queries were encoded as the passages were."""
        field = self.fields.get(queries.size)
        if field is None:
            raise UserError(f"the collection has no size {queries.size}", f"it has {_listed(self.fields)}")
        for name, here, there in [
            ("fingerprint", field.fingerprint, queries.fingerprint),
            ("pooling", self.pooling, queries.pooling),
            ("normalize", self.normalize, queries.normalize),
        ]:
            if not agree(name, here, there):
                raise UserError(
                    f"the passages in Milvus and the queries differ in {name}: {here!r} and {there!r}",
                    "encode both with one model, and load the passages under another --collection",
                )

    def difference(self, other: CollectionMetadata) -> str | None:
        """The first thing in which two cards differ, in words."""
        for entry in dataclasses.fields(self):
            here, there = getattr(self, entry.name), getattr(other, entry.name)
            if entry.name == "fields":
                if set(here) != set(there):
                    return f"its sizes are {_listed(here)}, not {_listed(there)}"
                changed = [size for size in here if not here[size].agrees(there[size])]
                if changed:
                    return f"at {changed[0]} its model is {here[changed[0]]}, not {there[changed[0]]}"
            elif here != there:
                return f"its {entry.name} is {here!r}, not {there!r}"
        return None

    def dumps(self) -> str:
        """One line of JSON; `loads` reads it back."""
        values = vars(self) | {
            "format": _FORMAT,
            "version": _VERSION,
            "fields": {str(size): dataclasses.asdict(field) for size, field in self.fields.items()},
        }
        return json.dumps(values, sort_keys=True)

    @classmethod
    def loads(cls, properties: Any, where: str) -> CollectionMetadata:
        """Read a collection's properties. Raises UserError for a collection that is not ours."""
        try:
            written = properties[CARD]
            values = dict(json.loads(written) if isinstance(written, str) else written)
            if (values.pop("format"), values.pop("version")) != (_FORMAT, _VERSION):
                raise ValueError
            fields = {Size.parse(size): Field(**field) for size, field in values.pop("fields").items()}
            return cls(fields=fields, **values)
        except (KeyError, TypeError, ValueError, UserError):
            raise UserError(f"{where} was not loaded by this version", "name another --collection") from None


def _listed(sizes: Mapping[Size, Field]) -> str:
    return ", ".join(map(str, sizes))
