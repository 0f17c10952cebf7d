"""Small stores for tests of the store."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter


@pytest.fixture
def make_spec() -> Callable[..., StoreSpec]:
    def make(**changes: object) -> StoreSpec:
        values: dict = {
            "kind": "passages",
            "size": Size(6, 8),
            "pooling": "mean",
            "normalize": False,
            "prefix": "passage: ",
            "separator": " ",
            "max_length": 196,
            "fingerprint": "f00d",
            "compute_dtype": "fp32",
            "store_dtype": "float32",
            "data_digest": "da7a",
            "data_count": 10,
            "shard_size": 4,
            "model_name": "model",
        }
        return StoreSpec(**(values | changes))

    return make


@pytest.fixture
def rows_of() -> Callable[[StoreSpec], tuple[list[str], np.ndarray]]:
    """The ids and vectors of a job: those of the whole data, cut to the job's part."""

    def rows(spec: StoreSpec) -> tuple[list[str], np.ndarray]:
        vectors = np.random.default_rng(7).standard_normal((spec.data_count, spec.size.dim)).astype(np.float32)
        part = slice(spec.first_row, spec.first_row + spec.rows)
        return [f"doc-{row}-é中🙂" for row in range(spec.data_count)][part], vectors[part]

    return rows


@pytest.fixture
def fill(rows_of: Callable) -> Callable[[StoreWriter], None]:
    """Write whatever a writer still lacks."""

    def write(writer: StoreWriter) -> None:
        ids, vectors = rows_of(writer.spec)
        for shard in writer.missing_shards():
            start, stop = writer.spec.shard_rows(shard)
            writer.write_shard(shard, ids[start:stop], vectors[start:stop])
        writer.finish()

    return write


@pytest.fixture
def write_store(fill: Callable) -> Callable[..., Path]:
    def write(folder: Path, spec: StoreSpec, **options: bool) -> Path:
        with StoreWriter.open(folder, spec, **options) as writer:
            fill(writer)
        return folder

    return write


@pytest.fixture
def contents() -> Callable[[Path], dict[str, str]]:
    """Every file of a folder with a digest of its bytes."""

    def digests(folder: Path) -> dict[str, str]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return digests
