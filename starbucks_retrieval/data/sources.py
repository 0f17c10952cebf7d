"""One function that picks the format: a local file or folder, `ir:…`, a short name, or a Hugging Face data set."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from starbucks_retrieval.data import arrow, csv, hub, ir, jsonl, parquet, short_names, tsv
from starbucks_retrieval.data.records import Read
from starbucks_retrieval.errors import UserError

_TEXT_FORMATS: dict[str, Any] = {
    ".jsonl": jsonl.rows,
    ".json": jsonl.rows,
    ".tsv": tsv.rows,
    ".txt": tsv.rows,
    ".csv": csv.rows,
}
_PATH_SUFFIXES = (*_TEXT_FORMATS, ".gz", ".parquet", ".arrow", ".trec")
_ENDINGS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")


class SourceRows(NamedTuple):
    """Where the rows come from, for messages, and how to read a slice of them."""

    source: str
    read: Read


def find_rows(collection: str, part: str, layouts: tsv.Layouts, config: str | None, split: str | None) -> SourceRows:
    """Find the `part` (corpus, queries, groups or pairs) of a collection in any of the four spellings.

    `layouts` names the columns of a tsv file. Raises UserError for a missing file and for a format nobody reads.
    """
    dataset_id = find_ir(collection, split)
    if dataset_id is not None:
        return SourceRows(f"ir:{dataset_id}", partial(ir.rows, dataset_id, part))
    path = find_path(collection)
    if path is None:
        details = ", ".join(filter(None, (config, split)))
        return SourceRows(
            f"{collection} ({details})" if details else collection, partial(hub.rows, collection, part, config, split)
        )
    if path.is_dir():
        if arrow.is_arrow_folder(path):
            folder = arrow.choose_split(path, split, part)
            return SourceRows(str(folder), partial(arrow.rows, folder))
        path = file_in(path, part)
    return SourceRows(str(path), _reader(path, layouts))


def find_ir(collection: str, split: str | None) -> str | None:
    """The ir_datasets id that `collection` spells, as `ir:…` or as a short name, else None.

    An `ir:` id names its split itself. A local file or folder of a short name's name comes first.
    """
    if collection.startswith("ir:"):
        return collection[3:]
    if os.path.exists(collection):
        return None
    return short_names.resolve(collection, split)


def find_path(collection: str) -> Path | None:
    """The local file or folder, or None if this can only be a hub name. Raises UserError for a path that is missing."""
    if not collection:  # Path("") would be the current folder
        raise UserError("no such file: the path is empty", "check the path")
    path = Path(collection).expanduser()
    if path.exists():
        return path
    is_path = collection.startswith((".", "/", "~")) or collection.endswith(_PATH_SUFFIXES)
    # A hub name has one slash at most, and nobody names a data set into a folder that stands right here.
    if is_path or collection.count("/") > 1 or ("/" in collection and path.parent.is_dir()):
        raise UserError(f"no such file: {collection}", "check the path")
    return None


def beir_folder(collection: str) -> Path | None:
    """The local folder that keeps corpus, queries and qrels as files, or None if `collection` is anything else."""
    path = Path(collection).expanduser()
    return path if collection and path.is_dir() and not arrow.is_arrow_folder(path) else None


def file_in(folder: Path, part: str) -> Path:
    """The file of a BEIR folder that holds its corpus or its queries."""
    for ending in _ENDINGS:
        if (folder / f"{part}{ending}").is_file():
            return folder / f"{part}{ending}"
    raise UserError(
        f"{folder} holds no {part}.jsonl",
        f"a folder must hold {', '.join(part + ending for ending in _ENDINGS)}, or come from save_to_disk",
    )


def _reader(path: Path, layouts: tsv.Layouts) -> Read:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if path.suffix == ".parquet":
        return partial(parquet.rows, path)
    if suffix not in _TEXT_FORMATS:
        raise UserError(
            f"cannot tell the format of {path} by its name",
            "name it .jsonl, .csv, .tsv or .txt (both tab-separated), each also with .gz, or .parquet",
        )
    read = _TEXT_FORMATS[suffix]
    return partial(read, path, layouts) if read is tsv.rows else partial(read, path)
