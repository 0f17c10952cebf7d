"""Small stores for tests of search, and what trec_eval would call the right answer."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import small_stores

from starbucks_retrieval.store import EmbeddingStore


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    """The loops that Numba compiles."""
    pytest.importorskip("numba", exc_type=ImportError)
    from starbucks_retrieval.search import compiled

    return compiled


@pytest.fixture
def write_store() -> Callable[..., Path]:
    """Write ids and vectors as a finished store, of five shards where there are many: each costs three files."""

    def write(folder: Path, ids: list[str], vectors: np.ndarray, **changes: object) -> Path:
        shard_size = max(64, -(-len(ids) // 5))
        return small_stores.write_store(folder, ids, vectors, **({"shard_size": shard_size} | changes))

    return write


@pytest.fixture
def open_written(tmp_path: Path, write_store: Callable) -> Callable[..., EmbeddingStore]:
    """Write ids and vectors as a finished store, and open it."""

    def write(ids: list[str], vectors: np.ndarray, name: str = "passages", **changes: object) -> EmbeddingStore:
        return EmbeddingStore.open(write_store(tmp_path / name, ids, vectors, **changes))

    return write


@pytest.fixture
def brute_force() -> Callable[..., list[list[tuple[str, np.float32]]]]:
    """Every inner product in higher precision, rounded to float32; sorted by score, then docid, both descending."""

    def rank(queries: np.ndarray, ids: list[str], vectors: np.ndarray, depth: int) -> list:
        scores = queries.astype(np.longdouble) @ vectors.astype(np.longdouble).T
        ranked = []
        for line in scores.astype(np.float64).astype(np.float32) + np.float32(0):
            order = sorted(range(len(ids)), key=lambda row: (line[row], ids[row].encode()), reverse=True)
            ranked.append([(ids[row], line[row]) for row in order[:depth]])
        return ranked

    return rank
