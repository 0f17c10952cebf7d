"""A store in memory: vectors that were just computed, searched as if they had been stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.store.dtypes import calibration_rows
from starbucks_retrieval.store.layout import largest_norm
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.shards import checked_rows
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.writer import StoreWriter


class MemoryStore(EmbeddingStore):
    """Vectors and ids in memory, read as a store is.

    Args:
        spec: The job that made them.
        ids: The ids of the rows.
        vectors: float32 [rows, dim].

    Example:
        >>> from starbucks_retrieval.sizes import Size
        >>> settings = {"pooling": "cls", "normalize": False, "prefix": "", "separator": " ", "max_length": 1}
        >>> settings |= {"fingerprint": "", "compute_dtype": "fp32", "store_dtype": "float32", "data_digest": ""}
        >>> spec = StoreSpec(kind="passages", size=Size(1, 2), data_count=2, **settings)
        >>> store = MemoryStore(spec, ["a", "b"], np.eye(2, dtype=np.float32))
        >>> store, store.ids(np.array([1]))
        (MemoryStore(2 passages at 1:2, float32), ['b'])
    """

    def __init__(self, spec: StoreSpec, ids: Sequence[str], vectors: np.ndarray) -> None:
        self.spec = spec
        self.count, self.first_row = len(vectors), 0
        self.largest_norm = largest_norm(vectors)
        self._shards, self._held = [], vectors
        self._ids: Sequence[str] | None = ids

    @property
    def _rows(self) -> np.ndarray:
        assert self._held is not None
        return self._held

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """As EmbeddingStore.blocks."""
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        for start, rows in super().blocks(max_rows, np.float32):
            yield start, rows.astype(wanted, copy=False)

    def ranges(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """As EmbeddingStore.ranges."""
        for start in range(0, self.count, max_rows):
            yield start, min(start + max_rows, self.count)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """As EmbeddingStore.rows."""
        return self._rows[start:stop]

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """As EmbeddingStore.consecutive."""
        return self.ids(np.arange(start, stop)), self._rows[start:stop]

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """As EmbeddingStore.vectors."""
        return self._rows[checked_rows(rows, self.count)]

    def ids(self, rows: np.ndarray) -> list[str]:
        """As EmbeddingStore.ids."""
        assert self._ids is not None
        return [self._ids[row] for row in checked_rows(rows, self.count).tolist()]

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """As EmbeddingStore.id_bytes."""
        return [docid.encode() for docid in self.ids(rows)]

    def save(
        self, folder: Path, spec: StoreSpec | None = None, overwrite: bool = False, store_dtype: str | None = None
    ) -> EmbeddingStore:
        """Write the vectors as a store on disk, and open it.

        Args:
            folder: The folder of the size; it is created.
            spec: The job that the store records; None: that of this store.
            overwrite: Replace another store in the folder.
            store_dtype: A name of `STORE_DTYPES` instead of that of the job; scales are learnt from these vectors.

        Raises:
            UserError: The folder holds something else.
        """
        spec = dataclasses.replace(spec or self.spec, data_count=self.count, parts=1, part=0)
        if store_dtype is not None:
            spec = spec.quantised(store_dtype, self._rows[calibration_rows(self.count)])
        with StoreWriter.open(folder, spec, overwrite) as writer:
            for shard in writer.missing_shards():
                writer.write_shard(shard, *self.consecutive(*spec.shard_rows(shard)))
            writer.finish()
        return EmbeddingStore.open(folder)
