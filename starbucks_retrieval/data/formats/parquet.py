"""Parquet files, read batch by batch."""

from __future__ import annotations

from pathlib import Path

from starbucks_retrieval.data.formats import Layouts, NumberedRows
from starbucks_retrieval.data.formats.arrow import BATCH_ROWS, batch_rows, check_not_gzip, text_columns
from starbucks_retrieval.errors import UserError


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (row number from 1, column → value) of each row; row groups before `start` are not decompressed.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the file.
        layouts: Ignored: the file names the columns.

    Raises:
        UserError: While iterating: the file is missing, compressed with gzip or damaged, or a value cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    check_not_gzip(path, "Parquet")
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
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
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the names of columns are read late
        raise UserError(f"{path}: not a readable Parquet file ({error})", "fetch or make the file again") from None


def count_rows(path: Path) -> int:
    """Return the number of rows that the file's metadata states."""
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
