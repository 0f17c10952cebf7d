"""A store in memory reads as one on disk."""

import numpy as np
import pytest
from small_stores import write_store

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, MemoryStore, StoreWriter, open_store

VECTORS = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
IDS = [f"d{i}" for i in range(10)]


@pytest.fixture
def stored(tmp_path):
    return EmbeddingStore.open(write_store(tmp_path / "L6-D4", IDS, VECTORS, shard_size=3, model_name="m"))


@pytest.fixture
def held(stored):
    return MemoryStore(stored.spec, IDS, VECTORS)


@pytest.mark.parametrize("dtype", [None, np.float32, np.float16])
def test_it_reads_the_same(stored, held, dtype):
    for ours, theirs in zip(held.blocks(4, dtype), stored.blocks(4, dtype), strict=True):
        assert ours[0] == theirs[0] and ours[1].dtype == theirs[1].dtype
        np.testing.assert_array_equal(ours[1], theirs[1])
    rows = np.array([7, 0, 0, 9])
    np.testing.assert_array_equal(held.vectors(rows), stored.vectors(rows))
    assert held.ids(rows) == stored.ids(rows) and held.id_bytes(rows) == stored.id_bytes(rows)
    assert held.consecutive(2, 5)[0] == stored.consecutive(2, 5)[0] == ["d2", "d3", "d4"]
    np.testing.assert_array_equal(held.consecutive(2, 5)[1], stored.consecutive(2, 5)[1])
    assert held.largest_norm == stored.largest_norm and len(held) == len(stored) == 10


def test_it_is_saved_in_the_shards_of_its_job(stored, held, tmp_path):
    again = held.save(tmp_path / "again")
    for name in ("manifest.json", "00003.ids.npy", "00003.vectors.npy"):
        assert (tmp_path / "again" / name).read_bytes() == (stored.folders[0] / name).read_bytes()
    assert again.spec == stored.spec


def test_rows_of_a_wrong_type_are_refused(stored, held):
    for store in (stored, held):
        np.testing.assert_array_equal(store.vectors(3), VECTORS[3:4])
        for rows in ([0.5], np.arange(10) > 4):
            with pytest.raises(IndexError, match="rows are whole numbers"):
                store.vectors(rows)
        with pytest.raises(IndexError, match="from 0 to 9"):
            store.ids([10])


def test_what_a_notebook_shows(stored, held, tmp_path):
    assert repr(held) == "MemoryStore(10 passages at 6:4, float32, model 'm')"
    assert repr(stored) == f"EmbeddingStore(10 passages at 6:4, float32, model 'm', in {stored.folders[0]})"
    with StoreWriter.open(tmp_path / "w", stored.spec) as writer:
        writer.write_shard(0, IDS[:3], VECTORS[:3])
        assert repr(writer) == f"StoreWriter(10 passages at 6:4, 1 of 4 shards, in {tmp_path / 'w'})"


def test_a_size_may_be_text(stored):
    folder = stored.folders[0].parent
    assert open_store(folder, "6:4").spec.size == open_store(f"{folder}/*", "6:4").spec.size == Size(6, 4)
    with pytest.raises(UserError, match="has no size 6:8"):
        open_store(folder, "6:8")
    for path in (None, ["emb"], 5):
        with pytest.raises(UserError, match="a path is needed, not something of type"):
            open_store(path)
