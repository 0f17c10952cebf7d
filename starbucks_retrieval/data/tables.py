"""What Parquet and Arrow share: batches of columns, turned into numbered rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.fields import NEGATIVE_SCORES, POSITIVE_SCORES
from starbucks_retrieval.errors import UserError

BATCH = 1024


def text_columns(schema: Any) -> list[str]:
    """All columns but vectors: an embedding stored beside a text would cost more to read than the text.

    A teacher's scores are of a vector's type, and are kept.
    """
    scores = (POSITIVE_SCORES, NEGATIVE_SCORES)
    return [field.name for field in schema if field.name in scores or not _is_vector(field.type)]


def batch_rows(
    batch: Any, first: int, start: int, stop: int | None, source: Path
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of those rows of `batch` between `start` and `stop`.

    `first` is the position of the batch's first row in the whole table.
    """
    begin = max(start - first, 0)
    end = batch.num_rows if stop is None else min(stop - first, batch.num_rows)
    for offset in range(begin, end, BATCH):
        piece = batch.slice(offset, min(BATCH, end - offset))
        try:
            rows = piece.to_pylist()
        except UnicodeDecodeError:
            here = first + offset
            raise UserError(
                f"{source}:{here + 1}: not UTF-8 in this row or the {piece.num_rows - 1} after it",
                "write the table again with its texts as UTF-8",
            ) from None
        yield from enumerate(rows, first + offset + 1)


def _is_vector(kind: Any) -> bool:
    import pyarrow.types as types

    return (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and (
        types.is_floating(kind.value_type)
    )
