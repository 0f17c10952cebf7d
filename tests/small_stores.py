"""Stores of made-up vectors, as `encode` would write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, StoreWriter


def write_store(folder: Path, ids: list[str], vectors: np.ndarray, **changes: object) -> Path:
    """Write ids and vectors as a finished store. `changes`: fields of its StoreSpec."""
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
