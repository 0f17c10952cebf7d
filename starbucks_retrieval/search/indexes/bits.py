"""Binary vectors: one bit a dimension, compared by Hamming distance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.indexes.parameters import check
from starbucks_retrieval.search.indexes.vectors import faiss_speaks

BINARY = "Binary"


class BitIndex:
    """A bit for each dimension of a vector: whether it lies above the median of the passages that were trained on.

    Queries are cut at the same medians: among vectors of one length inner products order as distances do, and these
    do not change when everything moves. Cut at zero, embeddings that share a direction would share most of their bits.
    A score is the inner product of the signs: dim - 2 × Hamming distance.
    """

    factory = BINARY
    learns, clusters, least, wanted = True, 0, 1, 65536

    def __init__(self, index: Any, dim: int, calibration: list[float]) -> None:
        self.dim = dim
        self.calibration = calibration
        self.built_with: dict[str, float] = {}
        self._index = index

    @classmethod
    def make(cls, dim: int, values: Mapping[str, float]) -> BitIndex:
        """An empty index. Raises UserError for any parameter: it takes none."""
        check(values, {}, BINARY, "building")
        return cls(import_faiss().IndexBinaryFlat(-(-dim // 8) * 8), dim, [])

    @classmethod
    def load(cls, path: Path, factory: str, calibration: list[float]) -> BitIndex:
        """Map an index from its file."""
        faiss = import_faiss()
        with faiss_speaks(f"FAISS cannot read {path}", "build the index again with --overwrite"):
            return cls(faiss.read_index_binary(str(path), faiss.IO_FLAG_MMAP_IFC), len(calibration), calibration)

    @property
    def count(self) -> int:
        return self._index.ntotal

    @property
    def search_parameters(self) -> dict[str, float]:
        return {}

    def train(self, sample: np.ndarray) -> None:
        """Take the medians of vectors [passages, dim]."""
        self.calibration = np.median(sample, axis=0).astype(np.float32).tolist()

    def add(self, block: np.ndarray) -> None:
        """Add vectors [passages, dim]: the next rows."""
        self._index.add(self._packed(block))

    def save(self, path: Path) -> None:
        with faiss_speaks(f"{path.parent} cannot be written", "free space there, then run the same command again"):
            import_faiss().write_index_binary(self._index, str(path))

    def search(self, queries: np.ndarray, k: int, values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Rows and scores, each [queries, k]; -1 stands for a row that is not there."""
        distances, rows = self._index.search(self._packed(queries), k)
        return rows, (self.dim - 2 * distances).astype(np.float32)

    def _packed(self, vectors: np.ndarray) -> np.ndarray:
        return np.packbits(vectors > np.array(self.calibration, np.float32), axis=1)
