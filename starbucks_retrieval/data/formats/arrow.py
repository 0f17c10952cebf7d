"""Folders written by `datasets.save_to_disk`: Arrow streams, memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import read_text
from starbucks_retrieval.data.tables import batch_rows, text_columns
from starbucks_retrieval.errors import UserError


def is_arrow_folder(path: Path) -> bool:
    """Whether `path` was written by save_to_disk, as one split or as several."""
    return (path / "state.json").is_file() or has_splits(path)


def has_splits(path: Path) -> bool:
    """Whether `path` was written by save_to_disk as several splits, each in a folder of its own."""
    return (path / "dataset_dict.json").is_file()


def choose_split(path: Path, split: str | None, part: str) -> Path:
    """The folder of one split: the one asked for, else the only one, else the one called `part` or `train`."""
    if (path / "state.json").is_file():
        return path
    names = _member(path / "dataset_dict.json", "splits")
    wanted = [split] if split else names if len(names) == 1 else [part, "train"]
    for name in wanted:
        if name in names:
            return path / name
    raise UserError(f"{path} has no split {wanted[-1]!r}", f"name one of {', '.join(map(str, names))}")


def rows(folder: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of each row from position `start` up to `stop`."""
    import pyarrow

    first = 0  # the position of the next batch's first row
    for entry in _member(folder / "state.json", "_data_files"):
        path = folder / entry["filename"]
        try:
            with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as reader:
                columns = text_columns(reader.schema)
                for batch in reader:
                    yield from batch_rows(batch.select(columns), first, start, stop, folder)
                    first += batch.num_rows
                    if stop is not None and first >= stop:
                        return
        except FileNotFoundError:
            raise UserError(f"no such file: {path}", "save the data set again") from None
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path}: not an Arrow stream ({error})", "save the data set again") from None


def _member(path: Path, key: str) -> list[Any]:
    try:
        found = json.loads(read_text(path))[key]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not found:
        raise UserError(f"{path} does not list its {key.strip('_')}", "save the data set again")
    return found
