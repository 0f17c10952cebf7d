"""Small stores for tests of search, and what trec_eval would call the right answer."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreSpec, StoreWriter


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def write_store() -> Callable[..., Path]:
    """Write ids and vectors as a finished store."""

    def write(folder: Path, ids: list[str], vectors: np.ndarray, **changes: object) -> Path:
        values: dict = {
            "kind": "passages",
            "size": Size(6, vectors.shape[1]),
            "pooling": "cls",
            "normalize": False,
            "prefix": "",
            "separator": " ",
            "max_length": 196,
            "fingerprint": "f00d",
            "compute_dtype": "fp32",
            "store_dtype": "float32",
            "data_digest": "da7a",
            "data_count": len(ids),
            "shard_size": 64,
        }
        spec = StoreSpec(**(values | changes))
        with StoreWriter.open(folder, spec) as writer:
            for shard in writer.missing_shards():
                start, stop = (spec.first_row + row for row in spec.shard_rows(shard))
                writer.write_shard(shard, ids[start:stop], vectors[start:stop])
            writer.finish()
        return folder

    return write


@pytest.fixture
def open_written(tmp_path: Path, write_store: Callable) -> Callable[..., EmbeddingStore]:
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
