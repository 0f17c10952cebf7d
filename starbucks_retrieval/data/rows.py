"""The folder of this package in the user's cache, and rows in memory, which are written there in place of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import cache_folder, file_digest, sync_file, temporary_path

log = logging.getLogger(__name__)

#: A name that `open_corpus` and the other readers accept, or rows: a `datasets.Dataset`, or dicts with one row each.
Collection = str | os.PathLike[str] | Iterable[Mapping[str, Any]]

_BATCH = 10_000
# Fields of arguments that name collections.
_FIELDS = ("dataset_path", "query_path", "corpus_path", "eval_dataset_path")


def as_path(collection: Collection) -> str:
    """Return the name of a collection; rows in memory are written to a file of the cache first.

    Equal rows have one file, so that a rerun and other processes find it. A Dataset becomes an Arrow file, other rows
    jsonl.

    Args:
        collection: A name, which is returned as it is, or rows.

    Raises:
        UserError: The rows are neither, or cannot be written.

    Example:
        >>> from starbucks_retrieval.data import open_groups
        >>> name = as_path([{"query": "hens", "positive": "Hens lay eggs."}])
        >>> [group.query for group in open_groups(name)]
        ['hens']
    """
    if isinstance(collection, (str, os.PathLike)):
        return os.fspath(collection)
    if isinstance(collection, Mapping):
        names = ", ".join(map(str, list(collection)[:5]))
        raise UserError(f"a mapping with the keys {names} is no list of rows", "name a split: dataset['train']")
    if not isinstance(collection, Iterable):
        raise UserError(f"{type(collection).__name__} is neither a name nor rows", "give a Dataset, or a list of dicts")
    is_dataset = hasattr(collection, "with_format")
    folder, suffix = cache_folder() / "rows", ".arrow" if is_dataset else ".jsonl"
    with temporary_path(folder / f"rows{suffix}") as temporary:
        if is_dataset:
            _write_arrow(collection, temporary)
        else:
            _write_jsonl(collection, temporary)
        final = folder / f"{file_digest(temporary)}{suffix}"  # known when all rows are written
        if not final.exists():
            sync_file(temporary)
            os.replace(temporary, final)
    log.info("the rows are in %s", final)
    return str(final)


def store_collections(arguments: Any) -> None:
    """Replace rows in the fields of arguments that name collections by the names of their files.

    Args:
        arguments: A dataclass; its fields `dataset_path`, `query_path`, `corpus_path` and `eval_dataset_path`, as far as
            it has them, are changed in place.
    """
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if field.name not in _FIELDS or value is None or isinstance(value, str):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            continue
        several = isinstance(value, list) and not all(isinstance(item, Mapping) for item in value)
        paths = [as_path(item) for item in (value if several else [value])]
        if "list" not in str(field.type) and len(paths) > 1:
            raise UserError(f"{field.name} has {len(paths)} collections", "give one")
        setattr(arguments, field.name, paths if "list" in str(field.type) else paths[0])


def _write_arrow(rows: Any, path: Path) -> None:
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        writer: Any = None
        for table in rows.with_format("arrow").iter(batch_size=_BATCH):
            if writer is None:
                # Metadata would tell equal rows apart: datasets stores features there.
                writer = stack.enter_context(pa.ipc.new_stream(str(path), table.schema.remove_metadata()))
            writer.write_table(table.replace_schema_metadata(None))
    if writer is None:
        raise UserError("the data set has no rows", "check how it was made")


def _write_jsonl(rows: Iterable[Any], path: Path) -> None:
    number = 0
    with open(path, "w", encoding="utf-8") as file:
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping):
                raise UserError(
                    f"row {number} is of type {type(row).__name__}, not a dict",
                    "give a list of dicts, one for each row; of a DataFrame: frame.to_dict('records')",
                )
            try:
                file.write(json.dumps(dict(row), ensure_ascii=False) + "\n")
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"row {number} cannot be written as JSON: {error}", "use texts, numbers and lists"
                ) from None
    if not number:
        raise UserError("the list of rows is empty", "check how it was made")
