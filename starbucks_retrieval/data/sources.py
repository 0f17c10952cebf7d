"""Find the rows of a collection: a local file or folder, an `ir:` id, a short name, or a Hugging Face data set."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from starbucks_retrieval.data import ir_datasets
from starbucks_retrieval.data.formats import FORMATS, Layouts, arrow, file_endings, find_reader
from starbucks_retrieval.data.hub import HubData
from starbucks_retrieval.data.records import Read
from starbucks_retrieval.errors import UserError


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
            folder = arrow.choose_split(path, split, part)
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
