"""Parquet files, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.tables import BATCH, batch_rows, text_columns
from starbucks_retrieval.errors import UserError


def rows(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of each row from position `start` up to `stop`."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = text_columns(table.schema_arrow)
            first = 0
            for group in range(table.num_row_groups):
                size = table.metadata.row_group(group).num_rows
                if first + size <= start:  # a whole row group before the slice is never decompressed
                    first += size
                    continue
                for batch in table.iter_batches(BATCH, row_groups=[group], columns=columns):
                    yield from batch_rows(batch, first, start, stop, path)
                    first += batch.num_rows
                    if stop is not None and first >= stop:
                        return
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})", "fetch or make the file again") from None
