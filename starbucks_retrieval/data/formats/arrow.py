"""Arrow streams and Parquet files, read by pyarrow: single files, and the folders that `datasets.save_to_disk` writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.fields import COLUMNS, NEGATIVE_SCORES, POSITIVE_SCORES
from starbucks_retrieval.data.formats import Layouts, NumberedRows
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import FileName, check_value, read_json

BATCH_ROWS = 1024  # converted to Python objects at a time


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (row number from 1, column → value) of each row of an Arrow stream.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the file.
        layouts: Ignored: the file names the columns.

    Raises:
        UserError: The file's name ends in .gz. While iterating: the file is missing or damaged, or a value cannot be
            read.
    """
    _check_not_gzip(path, "Arrow")
    return _stream_rows([path], start, stop, path)


def folder_rows(folder: Path, start: int = 0, stop: int | None = None) -> NumberedRows:
    """Yield (row number from 1, column → value) of each row of one split written by save_to_disk.

    Args:
        folder: The folder, with a `state.json`.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the split.

    Raises:
        UserError: `state.json` does not list the files. While iterating: a file is missing or damaged, or a value
            cannot be read.
    """
    files = [folder / entry["filename"] for entry in _listed(folder / "state.json", "_data_files", dict[str, FileName])]
    return _stream_rows(files, start, stop, folder)


def count_rows(path: Path) -> int:
    """Return the number of rows of an Arrow stream; only the heads of its batches are read."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as reader:
        return sum(batch.num_rows for batch in reader)


def is_arrow_folder(path: Path) -> bool:
    """Return whether `path` was written by save_to_disk, as one split or as several."""
    return (path / "state.json").is_file() or has_splits(path)


def has_splits(path: Path) -> bool:
    """Return whether `path` was written by save_to_disk as several splits, each in its own folder."""
    return (path / "dataset_dict.json").is_file()


def split_folder(path: Path, split: str | None, part: str) -> Path:
    """Return the folder of a split that save_to_disk wrote; one with a single split is returned as it is.

    Args:
        path: The folder of all splits, or of one.
        split: As for `choose_split`, whose errors this raises too.
        part: Likewise.

    Raises:
        UserError: The folder does not list its splits.
    """
    if (path / "state.json").is_file():
        return path
    return path / choose_split(_listed(path / "dataset_dict.json", "splits", FileName), split, part, path)


def choose_split(splits: Iterable[str], split: str | None, part: str, source: object) -> str:
    """Return the name of a split: `split` if given, else the only one, else the one called `part` or `train`.

    Args:
        splits: The names of the splits that there are.
        split: The split; None to choose one.
        part: `corpus`, `queries` … as for `find_rows`.
        source: What has the splits, for the message.

    Raises:
        UserError: There is no such split.

    Example:
        >>> choose_split(["train", "dev"], None, "corpus", "org/set")
        'train'
    """
    names = list(map(str, splits))
    wanted = [split] if split else names if len(names) == 1 else [part, "train"]
    for name in wanted:
        if name in names:
            return name
    raise UserError(f"{source} has no split {wanted[-1]!r}", f"name one of {', '.join(names)}")


def text_columns(schema: Any) -> list[str]:
    """Return the names of the columns to read: all but vectors, and dates that no reader asks for.

    An embedding stored beside a text costs more to read than the text. A vector is a list of floats; the scores of a
    teacher have that type too, and are kept. Tables can hold dates that Python has no type for.

    Args:
        schema: A pyarrow.Schema.

    Example:
        >>> import pyarrow as pa
        >>> text_columns(pa.schema({"text": pa.string(), "embedding": pa.list_(pa.float32())}))
        ['text']
    """
    import pyarrow.types as types

    scores = (POSITIVE_SCORES, NEGATIVE_SCORES)
    return [
        field.name
        for field in schema
        if field.name in scores
        or not (_is_vector(field.type) or (types.is_temporal(field.type) and field.name not in COLUMNS))
    ]


def batch_rows(batch: Any, first: int, start: int, stop: int | None, source: Path) -> NumberedRows:
    """Yield (row number from 1, column → value) of the rows of a batch that lie in a slice of the table.

    Args:
        batch: A pyarrow.RecordBatch.
        first: The position, from 0, of the batch's first row in the whole table.
        start: The first position of the slice, in the whole table.
        stop: The end of the slice, exclusive; None for the end of the table.
        source: The file or folder, for messages.

    Raises:
        UserError: While iterating: a text is not UTF-8.

    Example:
        >>> import pyarrow as pa
        >>> batch = pa.record_batch({"id": ["c", "d"]})
        >>> list(batch_rows(batch, first=2, start=3, stop=None, source=Path("corpus.arrow")))
        [(4, {'id': 'd'})]
    """
    begin = max(start - first, 0)
    end = batch.num_rows if stop is None else min(stop - first, batch.num_rows)
    for offset in range(begin, end, BATCH_ROWS):
        piece = batch.slice(offset, min(BATCH_ROWS, end - offset))
        try:
            found = piece.to_pylist()
        except UnicodeDecodeError:
            raise UserError(
                f"{source}:{first + offset + 1}: not UTF-8 in this row or the {piece.num_rows - 1} after it",
                "write the table again with its texts as UTF-8",
            ) from None
        except (ValueError, TypeError, KeyError, ArithmeticError, SystemError, MemoryError, RecursionError) as error:
            raise UserError(  # dates that Python has no type for, unknown time zones, damaged files
                f"{source}:{first + offset + 1}: a value that cannot be read in this row or the {piece.num_rows - 1} "
                f"after it ({type(error).__name__}: {error})",
                "write the table again, with dates as texts",
            ) from None
        yield from enumerate(found, first + offset + 1)


def parquet_rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (row number from 1, column → value) of each row of a Parquet file; row groups before `start` are not decompressed.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the file.
        layouts: Ignored: the file names the columns.

    Raises:
        UserError: While iterating: the file is missing, compressed with gzip or damaged, or a value cannot be read.
    """
    import pyarrow.parquet

    _check_not_gzip(path, "Parquet")
    with (
        _readable(path, "a readable Parquet file", "check the path", "fetch or make the file again"),
        pyarrow.parquet.ParquetFile(path) as table,
    ):
        columns = text_columns(table.schema_arrow)
        first = 0
        for group in range(table.num_row_groups):
            size = table.metadata.row_group(group).num_rows
            if first + size <= start:
                first += size
                continue
            for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                yield from batch_rows(batch, first, start, stop, path)
                first += batch.num_rows
                if stop is not None and first >= stop:
                    return


def count_parquet_rows(path: Path) -> int:
    """Return the number of rows that the metadata of a Parquet file states."""
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)


def _check_not_gzip(path: Path, name: str) -> None:
    """Refuse a compressed file of a format that is read at random positions, by its name."""
    if path.suffix == ".gz":
        raise UserError(f"{path}: {name} files are not read through gzip", f"unpack it: gunzip {path}")


def _stream_rows(files: list[Path], start: int, stop: int | None, source: Path) -> NumberedRows:
    import pyarrow

    again = "save the data set again"
    first = 0  # the position of the next batch's first row
    for path in files:
        with (
            _readable(path, "an Arrow stream", again, again),
            pyarrow.memory_map(str(path)) as mapped,
            pyarrow.ipc.open_stream(mapped) as reader,
        ):
            columns = text_columns(reader.schema)
            for batch in reader:
                if first + batch.num_rows > start:
                    chosen = batch.select(columns)
                    _validate(chosen)
                    yield from batch_rows(chosen, first, start, stop, source)
                first += batch.num_rows
                if stop is not None and first >= stop:
                    return


@contextmanager
def _readable(path: Path, what: str, if_missing: str, if_damaged: str) -> Iterator[None]:
    """Raise a UserError with its remedy where the file that is read within is missing or not `what` it should be."""
    import pyarrow

    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", if_missing) from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the names of columns are read late
        raise UserError(f"{path}: not {what} ({error})", if_damaged) from None


def _validate(batch: Any) -> None:
    """Raise ArrowInvalid if a batch is damaged: a wrong offset in a memory-mapped file would end the process.

    Texts are taken for bytes, since reading them checks that they are UTF-8: this takes a fifth of the time.
    """
    import pyarrow as pa

    bytes_of = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    for column in batch.columns:
        column.validate()
        (column.view(bytes_of[column.type]) if column.type in bytes_of else column).validate(full=True)


def _listed(path: Path, key: str, kind: Any) -> list[Any]:
    """Return the items of a list in a file that save_to_disk wrote."""
    name, hint = f"{path} does not list its {key.strip('_')}", "save the data set again"
    try:
        found = check_value(read_json(path).get(key), list[kind], key)
    except UserError as error:
        raise UserError(f"{name} ({error.what})", hint) from None
    if not found or any(isinstance(entry, dict) and "filename" not in entry for entry in found):
        raise UserError(name, hint)
    return found


def _is_vector(kind: Any) -> bool:
    import pyarrow.types as types

    return (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and (
        types.is_floating(kind.value_type)
    )
