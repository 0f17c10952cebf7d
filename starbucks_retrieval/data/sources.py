"""Find the rows of a collection: a local file or folder, an `ir:` id, a short name, a Hugging Face data set, or rows in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from starbucks_retrieval.data import ir_datasets
from starbucks_retrieval.data.formats import FORMATS, Layouts, arrow, file_endings, find_reader
from starbucks_retrieval.data.hub import HubData
from starbucks_retrieval.data.records import Read
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import cache_folder, file_digest, sync_file, temporary_path


class SourceRows(NamedTuple):
    """The rows of a collection.

    Attributes:
        source: What messages call it: a file, a folder, an `ir:` id or the name of a data set.
        read: Called with the first position, from 0, and the position after the last one, or None for all rows.
    """

    source: str
    read: Read


def find_rows(collection: str, part: str, layouts: Layouts, config: str | None, split: str | None) -> SourceRows:
    """Find the rows of one part of a collection.

    Args:
        collection: File, folder, `ir:` id, short name or Hugging Face data set.
        part: `corpus`, `queries`, `groups`, `pairs` or `labelled`.
        layouts: Column names of files without a header, by their number of columns.
        config: Configuration of a Hugging Face data set.
        split: Split of a Hugging Face data set, a short name, or a save_to_disk folder.

    Raises:
        UserError: The file is missing, or its name ends in no known format.
    """
    dataset_id = find_ir(collection, split)
    if dataset_id is not None:
        return SourceRows(f"ir:{dataset_id}", partial(ir_datasets.rows, dataset_id, part))
    path = find_path(collection)
    if path is None:
        details = ", ".join(filter(None, (config, split)))
        source = f"{collection} ({details})" if details else collection
        return SourceRows(source, HubData(collection, part, config, split).rows)
    if path.is_dir():
        if arrow.is_arrow_folder(path):
            folder = arrow.split_folder(path, split, part)
            return SourceRows(str(folder), partial(arrow.folder_rows, folder))
        path = _file_in(path, part)
    reader = find_reader(path)
    return SourceRows(str(path), lambda start, stop: reader(path, start, stop, layouts))


def find_ir(collection: str, split: str | None) -> str | None:
    """Return the ir_datasets id that a collection names, as `ir:…` or as a short name, else None.

    A local file or folder named like a short name has precedence.

    Args:
        collection: The collection as the user wrote it.
        split: The split of a short name; None for its first one. An `ir:` id names its split itself and ignores this.

    Raises:
        UserError: The short name has no such split.

    Example:
        >>> find_ir("ir:beir/fiqa/dev", None), find_ir("beir/fiqa", "dev"), find_ir("corpus.tsv", None)
        ('beir/fiqa/dev', 'beir/fiqa/dev', None)
    """
    if collection.startswith("ir:"):
        return collection[3:]
    if os.path.exists(collection):
        return None
    return ir_datasets.resolve_short_name(collection, split)


def find_path(collection: str) -> Path | None:
    """Return the local file or folder that a collection names, or None if this can only be a name on the hub.

    Args:
        collection: The collection as the user wrote it; `~` is expanded.

    Raises:
        UserError: The text is empty, or looks like a local path that does not exist: it starts with `.`, `/` or `~`,
            has the ending of a known format, has two or more slashes, or has one and its first part is a folder.
    """
    if not collection:  # Path("") would be the current folder
        raise UserError("no such file: the path is empty", "check the path")
    path = Path(collection).expanduser()
    if path.exists():
        return path
    is_path = collection.startswith((".", "/", "~")) or collection.endswith((*FORMATS, ".gz", ".trec"))
    # A name on the hub has one slash at most, and its first part is not a folder that exists here.
    if is_path or collection.count("/") > 1 or ("/" in collection and path.parent.is_dir()):
        raise UserError(f"no such file: {collection}", "check the path")
    return None


def beir_folder(collection: str) -> Path | None:
    """Return the local folder that holds corpus, queries and qrels as files, None if the collection is anything else.

    Args:
        collection: The collection as the user wrote it; `~` is expanded.

    Returns:
        Any folder that save_to_disk did not write. Whether it holds the files is not checked here.
    """
    path = Path(collection).expanduser()
    return path if collection and path.is_dir() and not arrow.is_arrow_folder(path) else None


def _file_in(folder: Path, part: str) -> Path:
    for ending in file_endings():
        if (folder / f"{part}{ending}").is_file():
            return folder / f"{part}{ending}"
    raise UserError(
        f"{folder} holds no {part}.jsonl",
        f"a folder must hold {part} with one of the endings {', '.join(file_endings())}, or come from save_to_disk",
    )


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
