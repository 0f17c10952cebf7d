"""How many records a collection has, where that is cheap to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from starbucks_retrieval.data.records import Records

SMALL = 64 << 20  # bytes of a file that is read through
_SAMPLE = 4 << 20  # bytes of a larger one from which its lines are guessed


class RecordCount(NamedTuple):
    """A number of records, None where it is unknown, and whether it is exact."""

    number: int | None
    exact: bool

    def __str__(self) -> str:
        if self.number is None:
            return "an unknown number of"
        return f"{'' if self.exact else 'about '}{self.number:,}"


def count_records(records: Records[Any]) -> RecordCount:
    """Count a small local file, take a Parquet file's own figure, guess a large file of lines by its first ones.

    Anything else, data sets of the hub and of ir_datasets among it, is unknown. Raises UserError for a file that is
    read and is malformed.
    """
    path = Path(records.source)
    if not path.is_file():
        return RecordCount(None, False)
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return RecordCount(int(pyarrow.parquet.ParquetFile(path).metadata.num_rows), True)
    size = path.stat().st_size
    if size <= (SMALL // 4 if path.suffix == ".gz" else SMALL):
        return RecordCount(sum(1 for _ in records), True)
    if path.suffix == ".gz":
        return RecordCount(None, False)
    with open(path, "rb") as handle:
        lines = handle.read(_SAMPLE).count(b"\n")
    return RecordCount(round(size / _SAMPLE * lines), False) if lines else RecordCount(None, False)
