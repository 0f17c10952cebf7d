"""Where the sizes of a collection live: together in one Milvus collection, or, where it takes fewer fields, apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.engines.milvus.metadata import CARD, INDEX, CollectionMetadata
from starbucks_retrieval.sizes import Size

ROW, DOCID = "row", "docid"


@dataclass(frozen=True)
class Collection:
    """One Milvus collection. `index`: what everything on its card is indexed with; None before that is done."""

    name: str
    card: CollectionMetadata
    index: str | None


def field_name(size: Size) -> str:
    """The vector field of a size."""
    return f"layer{size.layer}_dim{size.dim}"


def check_name(collection: str) -> None:
    """Raise UserError for a name that Milvus does not take."""
    if not re.fullmatch(r"[A-Za-z_]\w{0,200}", collection, re.ASCII):
        raise UserError(
            f"{collection!r} cannot name a Milvus collection", "use letters, digits and underscores, no digit first"
        )


def find_collections(connection: Connection, collection: str) -> list[Collection]:
    """The Milvus collections of a collection, none if there is none. Raises UserError for one that is not ours."""
    if connection.call("has_collection", collection):
        return [_read(connection, collection)]
    apart = re.compile(rf"{collection}_layer\d+_dim\d+")
    names = [name for name in sorted(connection.call("list_collections")) if apart.fullmatch(name)]
    return [_read(connection, name) for name in names]


def make_collections(connection: Connection, collection: str, card: CollectionMetadata) -> list[Collection]:
    """Find or create what the card describes. Raises UserError where something else is there."""
    homes = find_collections(connection, collection)
    if not homes:
        try:
            return [_create(connection, collection, card)]
        except UserError as error:
            if len(card.fields) == 1 or not re.search(r"vector field", error.what):
                raise
            log.info("this Milvus takes fewer than %d vector fields: one collection a size", len(card.fields))
    if homes and homes[0].name == collection:
        wanted = {collection: card}
    else:
        wanted = {f"{collection}_{field_name(size)}": card.only(size) for size in card.fields}
    for home in homes:
        if home.name not in wanted:
            continue
        if difference := home.card.difference(wanted[home.name]):
            raise UserError(
                f"the collection {home.name} holds something else: {difference}",
                "name another --collection, or drop this one",
            )
    there = {home.name: home for home in homes}
    return [there.get(name) or _create(connection, name, own) for name, own in wanted.items()]


def mark_complete(connection: Connection, home: Collection, index: str) -> None:
    """Say on the collection that it can be searched, and by what."""
    if home.index != index:
        connection.call("alter_collection_properties", home.name, properties={INDEX: index})


def _read(connection: Connection, name: str) -> Collection:
    properties: Any = connection.call("describe_collection", name).get("properties") or {}
    card = CollectionMetadata.loads(properties, f"the collection {name} at {connection.shown}")
    return Collection(name, card, properties.get(INDEX))


def _create(connection: Connection, name: str, card: CollectionMetadata) -> Collection:
    from pymilvus import DataType

    schema = connection.schema()
    schema.add_field(ROW, DataType.INT64, is_primary=True)
    schema.add_field(DOCID, DataType.VARCHAR, max_length=card.id_bytes)
    for size in card.fields:
        schema.add_field(field_name(size), DataType.FLOAT_VECTOR, dim=size.dim)
    connection.call(
        "create_collection", name, schema=schema, properties={CARD: card.dumps()}, consistency_level="Strong"
    )
    return Collection(name, card, None)
