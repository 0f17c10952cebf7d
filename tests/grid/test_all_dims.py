"""One pass for all dims finds what exact search finds at each of them, ties and near ties included."""

from __future__ import annotations

import numpy as np
import pytest
from small_stores import write_store

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid import search_all_dims
from starbucks_retrieval.grid.all_dims import truncated_views
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.store import EmbeddingStore

DIMS = [3, 8, 24]


def write(folder, vectors, **changes) -> EmbeddingStore:
    ids = [f"d{i:04d}" for i in np.random.default_rng(1).permutation(len(vectors))]
    return EmbeddingStore.open(write_store(folder, ids, vectors, shard_size=150, **changes))


def pooled_layers(kind: str, rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, DIMS[-1])) * 10
    if kind == "ties":  # few different vectors, so many equal scores
        vectors = rng.integers(-1, 2, (rows, DIMS[-1])).astype(float)
        vectors[:, 3:8] = 0
    elif kind == "near":  # directions that differ by about what single precision can tell
        vectors = 10 + rng.standard_normal((1, DIMS[-1])) + rng.standard_normal((rows, DIMS[-1])) * 1e-5
    elif kind == "extremes":  # nothing in the first numbers, and lengths far apart
        vectors[::3, :8] = 0
        vectors[::7] = 0
        vectors *= 10.0 ** rng.integers(-12, 6, (rows, 1))
    return vectors.astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "normalize"),
    [
        ("plain", True),
        ("ties", False),
        ("near", True),
        ("extremes", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("plain", False), ("ties", True), ("near", False), ("extremes", True))
        ),
    ],
)
def test_equals_exact_search_at_every_dim_bit_for_bit(tmp_path, kind, normalize):
    passages, queries = pooled_layers(kind, 400, 2), pooled_layers(kind, 37, 3)
    store = write(tmp_path / "taps", passages)
    found = list(search_all_dims(queries, store, DIMS, 15, normalize=normalize, max_memory="120KB"))
    for dim in DIMS:
        cut = write(tmp_path / f"{dim}", truncated_views(passages, dim, normalize))
        expected = list(exact_search(truncated_views(queries, dim, normalize), cut, 15))
        rows, scores = (np.concatenate(parts) for parts in zip(*expected))
        own = [one for one in found if one.dim == dim]
        assert [one.start for one in own] == np.cumsum([0, *(len(one.rows) for one in own)])[:-1].tolist()
        assert np.array_equal(np.concatenate([one.rows for one in own]), rows)
        assert np.array_equal(np.concatenate([one.scores for one in own]), scores)
    assert len([one for one in found if one.dim == 3]) > 1  # several batches of queries


def test_memory_bounds_what_is_read_and_kept(tmp_path, monkeypatch):
    import starbucks_retrieval.grid.all_dims as module

    store = write(tmp_path, pooled_layers("plain", 3000, 2))
    seen = []
    blocks = module.tensor_blocks
    monkeypatch.setattr(module, "tensor_blocks", lambda s, rows, *rest: seen.append(rows) or blocks(s, rows, *rest))
    queries = pooled_layers("plain", 300, 3)
    small = list(search_all_dims(queries, store, DIMS, 10, normalize=True, max_memory="1MB"))
    assert len(seen) > 1 and 256 <= max(seen) < 1500
    largest = max(len(one.rows) for one in small)
    assert largest * 43 * 100 * len(DIMS) <= 250_000  # a quarter for the lists, as search plans them
    large = list(search_all_dims(queries, store, DIMS, 10, normalize=True, max_memory="1GB"))
    assert len(large) == len(DIMS) < len(small)
    for dim in DIMS:
        parts = [np.concatenate([one.rows for one in found if one.dim == dim]) for found in (small, large)]
        assert np.array_equal(*parts)


def test_a_corpus_smaller_than_depth_gives_all_of_it(tmp_path):
    store = write(tmp_path, pooled_layers("plain", 5, 2))
    for one in search_all_dims(pooled_layers("plain", 2, 3), store, DIMS, 100, normalize=True):
        assert sorted(one.rows[0].tolist()) == [0, 1, 2, 3, 4]


def test_what_cannot_be_searched(tmp_path):
    store = write(tmp_path, pooled_layers("plain", 5, 2))
    broken = pooled_layers("plain", 2, 3)
    broken[1, 3] = np.nan
    with pytest.raises(UserError, match="NaN"):
        list(search_all_dims(broken, store, DIMS, 3, normalize=True))
    with pytest.raises(UserError, match="cannot be cut"):
        list(search_all_dims(pooled_layers("plain", 2, 3), store, [8, 64], 3, normalize=True))


def test_normalised_embeddings_are_those_of_the_encoder(tmp_path):
    import torch

    from starbucks_retrieval.grid.all_dims import TruncatedView
    from starbucks_retrieval.models.pooling import embedding

    vectors = pooled_layers("plain", 150, 4)
    store = TruncatedView(write(tmp_path, vectors), 8, True)
    expected = embedding(torch.from_numpy(vectors), 8, True).numpy()
    assert np.array_equal(store.vectors(np.arange(150)), expected)
    assert np.array_equal(np.concatenate([block.copy() for _, block in store.blocks(64)]), expected)
    assert store.spec.normalize and store.dtype == np.float32
