"""Data sets of the Hugging Face hub: files that are downloaded once into the hub's cache, and read from there.

A data set is resolved to the files of one commit. A file is downloaded when its first row is needed; huggingface_hub
keeps it under its digest, locks it against other processes, and resumes a download that broke off. Parquet and
jsonl are read as local files are; other formats are parsed by the package datasets, from the copy.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starbucks_retrieval.data.formats import NumberedRows, arrow, jsonl, raw_lines
from starbucks_retrieval.data.formats.arrow import choose_split
from starbucks_retrieval.data.records import Read
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import cache_folder, write_json
from starbucks_retrieval.parsing import read_json

log = logging.getLogger(__name__)

Parse = Callable[[Path], Iterable[Mapping[str, Any]]]

_ADDRESS = re.compile(r"hf://datasets/([^@]+)@(refs/\w+/[^/]+|[^/]+)/(.+)")
_CONVERTED = "refs/convert/parquet"  # the branch where the hub keeps a copy of older data sets as Parquet


class HubData:
    """One split of a Hugging Face data set. It is resolved to files when it is read first, and keeps to them.

    Args:
        name: The name of the data set on the hub.
        part: `corpus`, `queries` … as for `find_rows`. Without `config` or `split` it can select the configuration or
            the split of that name.
        config: The configuration; None for the default one, or for the one called `part` if there is no default.
        split: The split; None for the only one, else the one called `part`, else `train`.
    """

    def __init__(self, name: str, part: str, config: str | None = None, split: str | None = None) -> None:
        self._name = name
        self._of = (name, part, config, split)
        self._read: Read | None = None

    def rows(self, start: int = 0, stop: int | None = None) -> NumberedRows:
        """Yield (row number from 1, column → value) of a slice of the rows.

        Args:
            start: The position, from 0, of the first row.
            stop: The position after the last row; None for all rows.

        Raises:
            UserError: While iterating: the split does not exist, the package datasets is missing, or anything else keeps
                the data from arriving, such as the network, the name or access rights.
        """
        try:
            if self._read is None:
                self._read = _find(*self._of)
            yield from self._read(start, stop)
        except ImportError:
            raise UserError(f"{self._name} needs the package datasets", "pip install datasets") from None
        except UserError:
            raise
        except Exception as error:
            # The libraries below raise dozens of types, and all of them mean that the data did not arrive.
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"cannot read the Hugging Face data set {self._name!r}: {line}",
                "check name, configuration and network; no file or folder has that name",
            ) from None


def _read_files(files: list[str], parse: Parse, start: int, stop: int | None) -> NumberedRows:
    """Yield the rows of a slice of files of one commit. Files after the slice are not downloaded.

    `files` are addresses as `hf://datasets/name@commit/path`; `parse` yields the rows of a local copy in a format that
    this package does not read by itself.
    """
    parsed = (
        lambda path, begin, end: _numbered(parse(path), begin, end),
        lambda path: sum(1 for _ in parse(path)),
    )
    first = 0  # the position of the first row of a file
    for address in files:
        if stop is not None and first >= stop:
            return
        path, begin, end = _local_copy(address), max(0, start - first), None if stop is None else stop - first
        reader, count = _READERS.get(path.name.removesuffix(".gz").rpartition(".")[2], parsed)
        if begin and begin >= (total := count(path)):
            first += total
            continue
        read = begin
        for number, row in reader(path, begin, end):
            read += 1
            yield first + number, row
        first += read


def _numbered(rows: Iterable[Mapping[str, Any]], start: int, stop: int | None) -> NumberedRows:
    yield from enumerate(map(dict, islice(rows, start, stop)), start + 1)


_READERS: dict[str, tuple[Callable[..., NumberedRows], Callable[[Path], int]]] = {
    "parquet": (arrow.parquet_rows, arrow.count_parquet_rows),
    "jsonl": (jsonl.rows, lambda path: sum(1 for _ in raw_lines(path))),
}


def _local_copy(address: str) -> Path:
    """Return the path of a file of the hub in the local cache, downloading it if it is not there."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return Path(address)  # it is local
    from huggingface_hub import hf_hub_download

    name, revision, path = found.groups()
    return Path(hf_hub_download(name, path, repo_type="dataset", revision=unquote(revision)))


def _find(name: str, part: str, config: str | None, split: str | None) -> Read:
    record = _record_path(name, part, config)
    try:
        builder = _builder(name, part, config)
    except ImportError:
        raise
    except Exception as error:
        files = _recorded(record)
        if files is None:
            raise
        log.warning("%s: the hub cannot be asked (%s); the files of the last time are read", name, type(error).__name__)
        return partial(_read_files, files[choose_split(files, split, part, name)], _no_parser)
    files = {str(key): [str(file) for file in found] for key, found in (builder.config.data_files or {}).items()}
    if not files:
        # Such as those that a program generates: they are read over the network.
        splits = builder.as_streaming_dataset()
        return partial(_numbered, splits[choose_split(splits, split, part, name)])
    if all(file.startswith("hf://") and file.endswith(".parquet") for file in chain(*files.values())):
        write_json(record, files)
    return partial(_read_files, files[choose_split(files, split, part, name)], partial(_parse, builder))


def _builder(name: str, part: str, config: str | None) -> Any:
    """Return the builder of a data set, which knows the files of its splits; no rows are read."""
    import datasets

    try:
        return datasets.load_dataset_builder(name, config)
    except ValueError as error:
        # BEIR's data sets have two configurations, corpus and queries.
        if config is None and "config name is missing" in str(error).lower() and f"'{part}'" in str(error):
            return datasets.load_dataset_builder(name, part)
        raise
    except RuntimeError as error:
        if "scripts are no longer supported" in str(error):
            return datasets.load_dataset_builder(name, config, revision=_CONVERTED)
        raise


def _parse(builder: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of one local file with the settings of the data set, such as the separator of its csv."""
    local = copy.copy(builder)
    local.config = copy.copy(builder.config)
    local.config.data_files = {"train": [str(path)]}
    yield from local.as_streaming_dataset(split="train")


def _no_parser(path: Path) -> Iterator[Mapping[str, Any]]:
    raise UserError(f"{path} is no Parquet file", "read the data set once while online")


def _record_path(name: str, part: str, config: str | None) -> Path:
    digest = hashlib.blake2b(json.dumps([name, config or f"default, {part}"]).encode(), digest_size=8).hexdigest()
    return cache_folder() / "hub" / f"{digest}.json"


def _recorded(record: Path) -> dict[str, list[str]] | None:
    try:
        return read_json(record, dict[str, list[str]])
    except (OSError, UserError):
        return None
