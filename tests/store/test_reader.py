import json

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, StoreWriter, open_store, open_stores, output_folder


@pytest.fixture
def store(tmp_path, make_spec, write_store):
    return EmbeddingStore.open(write_store(tmp_path / "s", make_spec(data_count=23, shard_size=5)))


@pytest.mark.parametrize("max_rows", [1, 2, 5, 7, 22, 23, 1000])
@pytest.mark.parametrize("dtype", [None, np.float64])
def test_blocks_cover_everything_in_order(store, rows_of, max_rows, dtype):
    _, vectors = rows_of(store.spec)
    seen = []
    for start, block in store.blocks(max_rows, dtype):
        assert start == sum(map(len, seen))
        assert 1 <= len(block) <= max_rows
        assert block.dtype == (dtype or np.float32)
        seen.append(block.copy())
    assert len(seen) == -(-23 // max_rows)
    assert np.array_equal(np.concatenate(seen), vectors)


def test_gather_keeps_order_and_repeats(store, rows_of):
    ids, vectors = rows_of(store.spec)
    rows = np.array([22, 0, 7, 7, 4, 5, 22])
    assert np.array_equal(store.vectors(rows), vectors[rows])
    assert store.ids(rows) == [ids[row] for row in rows]
    assert store.ids(np.array([], int)) == [] and store.vectors(np.array([], int)).shape == (0, 8)


@pytest.mark.parametrize("row", [-1, 23])
def test_rows_out_of_range_are_no_row_at_all(store, row):
    for gather in (store.vectors, store.ids):
        with pytest.raises(IndexError):
            gather(np.array([0, row]))


def test_largest_norm_is_that_of_what_is_stored(tmp_path, make_spec, write_store):
    spec = make_spec(store_dtype="float16")
    store = EmbeddingStore.open(write_store(tmp_path / "s", spec))
    vectors = store.vectors(np.arange(10)).astype(np.float64)
    assert store.largest_norm == pytest.approx(np.linalg.norm(vectors, axis=1).max(), rel=1e-12)


def test_not_a_store(tmp_path):
    for path, what in [("absent", "no such folder"), ("empty", "not an embedding store"), ("file", "is a file")]:
        if path == "empty":
            (tmp_path / path).mkdir()
        if path == "file":
            (tmp_path / path).write_text("")
        with pytest.raises(UserError, match=what):
            open_store(tmp_path / path)
    (tmp_path / "empty" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="not the manifest of an embedding store"):
        open_store(tmp_path / "empty")


def test_incomplete_store_says_how_much_is_there(tmp_path, make_spec, rows_of):
    spec = make_spec()
    ids, vectors = rows_of(spec)
    with StoreWriter.open(tmp_path / "s", spec) as writer:
        writer.write_shard(0, ids[:4], vectors[:4])
    with pytest.raises(UserError, match="incomplete: 1 of 3 shards") as caught:
        EmbeddingStore.open(tmp_path / "s")
    assert "encode" in caught.value.hint


def test_newer_and_damaged_manifests(tmp_path, make_spec, write_store):
    manifest = write_store(tmp_path / "s", make_spec()) / "manifest.json"
    content = json.loads(manifest.read_text())
    for changes, what in [
        ({"version": 4}, "version 4"),
        ({"spec": {}}, "is damaged"),
        ({"shards": [{}]}, "is damaged"),
    ]:
        manifest.write_text(json.dumps(content | changes))
        with pytest.raises(UserError, match=what):
            EmbeddingStore.open(tmp_path / "s")
    manifest.write_text(json.dumps(content)[:100])
    with pytest.raises(UserError, match="is damaged"):
        EmbeddingStore.open(tmp_path / "s")


def test_missing_and_damaged_shards_are_named(tmp_path, make_spec, write_store):
    folder = write_store(tmp_path / "s", make_spec())
    path = folder / "00001.vectors.npy"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    store = EmbeddingStore.open(folder)
    with pytest.raises(UserError, match=r"00001.vectors.npy does not match its checksum"):
        store.verify()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"00001.vectors.npy has \d+ bytes instead of \d+"):
        EmbeddingStore.open(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"00001.vectors.npy is missing"):
        EmbeddingStore.open(folder)
    path.write_bytes(whole)
    EmbeddingStore.open(folder).verify()


def test_sizes_are_chosen_or_listed(tmp_path, make_spec, write_store):
    for size in (Size(2, 4), Size(6, 8)):
        write_store(output_folder(tmp_path / "out", size), make_spec(size=size))
    with pytest.raises(UserError, match="several sizes: 2:4, 6:8"):
        open_store(tmp_path / "out")
    with pytest.raises(UserError, match="has no size 3:4") as caught:
        open_store(tmp_path / "out", Size(3, 4))
    assert caught.value.hint == "it has 2:4, 6:8"
    assert open_store(tmp_path / "out", Size(2, 4)).spec.size == Size(2, 4)
    assert open_store(tmp_path / "out" / "L6-D8").spec.size == Size(6, 8)
    assert open_stores(str(tmp_path / "out" / "*"), Size(6, 8)).spec.size == Size(6, 8)
    with pytest.raises(UserError, match="has no size 2:4"):
        open_store(tmp_path / "out" / "L6-D8", Size(2, 4))


@pytest.fixture
def parts(tmp_path, make_spec, write_store):
    for part in (2, 0, 1):
        for size in (Size(2, 4), Size(6, 8)):
            spec = make_spec(size=size, data_count=23, parts=3, part=part)
            write_store(output_folder(tmp_path / "out", size, 3, part), spec)
    return tmp_path / "out"


def test_parts_read_as_one(parts, rows_of):
    for path in (parts, f"{parts}/part-*", f"{parts}/*/L6-D8"):
        store = open_store(path, Size(6, 8))
        ids, vectors = rows_of(store.spec)
        assert store.count == 23 and store.first_row == 0
        assert store.ids(np.arange(23)) == ids
        assert np.array_equal(np.concatenate([block.copy() for _, block in store.blocks(9)]), vectors)


def test_a_part_alone_knows_where_it_starts(parts):
    store = open_store(parts / "part-00001-of-00003" / "L6-D8")
    assert (store.first_row, store.count) == (7, 8)
    assert store.ids(np.array([0])) == ["doc-7-é中🙂"]


def test_parts_must_be_all_there_and_agree(parts, make_spec, write_store):
    with pytest.raises(UserError, match=r"parts \[2\] of 3 are missing"):
        open_stores(f"{parts}/part-0000[01]*", Size(6, 8))
    other = make_spec(data_count=23, parts=3, part=1, fingerprint="beef")
    write_store(output_folder(parts, Size(6, 8), 3, 1), other, overwrite=True)
    with pytest.raises(UserError, match="not parts of one store: fingerprint is 'f00d' there, 'beef' here"):
        open_store(parts, Size(6, 8))


def test_a_pattern_without_matches(tmp_path):
    with pytest.raises(UserError, match="no folder matches"):
        open_stores(str(tmp_path / "x*"))


def test_vectors_that_are_held_are_the_same_and_read_once(tmp_path, make_spec, write_store, monkeypatch):
    store = EmbeddingStore.open(write_store(tmp_path / "s", make_spec(store_dtype="float16")))
    expected = {rows: [(start, block.copy()) for start, block in store.blocks(rows, np.float32)] for rows in (3, 100)}
    store.hold(4 * store.count * store.spec.size.dim - 1)
    assert store._held is None and not store.mapped, "more than it may"
    store.hold(4 * store.count * store.spec.size.dim)
    assert store.mapped
    halves = next(store.blocks(4))[1]
    assert halves.dtype == np.float16
    monkeypatch.setattr(store, "_shards", [])
    for rows, blocks in expected.items():
        for (start, block), (start_32, block_32) in zip(blocks, store.blocks(rows, np.float32), strict=True):
            assert start == start_32
            assert np.array_equal(block, block_32)


def test_shards_that_are_kept_mapped_read_the_same(tmp_path, make_spec, write_store):
    store = EmbeddingStore.open(write_store(tmp_path / "s", make_spec()))
    rows = np.array([9, 0, 4, 4, 7])
    before, ids = store.vectors(rows), store.ids(rows)
    store.keep_mapped()
    for _ in range(2):
        assert np.array_equal(store.vectors(rows), before)
        assert store.ids(rows) == ids
    assert store._shards[0].vectors.rows(0, 3).base is store._shards[0].vectors.rows(1, 2).base
