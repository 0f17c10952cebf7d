import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.stores import SlicedStore, open_sizes, stored_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.operations import slice_store


def vectors_of(count, dim, normalize, seed=4):
    made = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    made[5] = 0
    made[6, :20] *= 1e-6
    return made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12) if normalize else made


@pytest.fixture(
    params=[
        ("float16", False),
        ("float32", True),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (("float16", True), ("float32", False))),
    ],
    ids=lambda kind: f"{kind[0]}-{'normalised' if kind[1] else 'raw'}",
)
def kind(request):
    return request.param


@pytest.fixture
def store_dtype(kind):
    return kind[0]


@pytest.fixture
def normalize(kind):
    return kind[1]


@pytest.fixture
def wide(open_written, store_dtype, normalize):
    ids = [f"d{i}" for i in range(3000)]
    return open_written(
        ids, vectors_of(3000, 48, normalize), "L6-D48", store_dtype=store_dtype, normalize=normalize, shard_size=700
    )


@pytest.mark.parametrize("dim", slow_except([5, 48], [1, 5, 20, 48]))
def test_a_slice_reads_as_a_stored_slice(tmp_path, wide, dim):
    slice_store(tmp_path / "L6-D48", tmp_path / "cut", [dim])
    stored = EmbeddingStore.open(tmp_path / "cut" / f"L6-D{dim}")
    view = SlicedStore(wide, dim)
    assert (view.count, view.dtype, view.spec.size) == (3000, stored.dtype, stored.spec.size)
    rows = np.random.default_rng(1).integers(0, 3000, 2500)
    assert view.vectors(rows).tobytes() == stored.vectors(rows).tobytes()
    assert view.vectors(rows).dtype == stored.dtype
    assert view.ids(rows) == stored.ids(rows) and view.id_bytes(rows) == stored.id_bytes(rows)
    assert view.largest_norm >= stored.largest_norm
    for start, stop in [(0, 10), (650, 2150)]:
        (left_ids, left), (right_ids, right) = view.consecutive(start, stop), stored.consecutive(start, stop)
        assert left_ids == right_ids and left.tobytes() == right.tobytes()
    for held in (False, True):
        if held:
            view.hold(4 * 3000 * dim)
        for max_rows in (64, 999, 1100, 3000, 10_000):
            for dtype in (None, np.float32):
                left = [(start, block.tobytes(), block.dtype) for start, block in view.blocks(max_rows, dtype)]
                right = [(start, block.tobytes(), block.dtype) for start, block in stored.blocks(max_rows, dtype)]
                assert left == right


def test_searching_a_slice_is_searching_a_stored_slice(tmp_path, wide):
    slice_store(tmp_path / "L6-D48", tmp_path / "cut", [12])
    stored = EmbeddingStore.open(tmp_path / "cut" / "L6-D12")
    queries = vectors_of(20, 12, True, seed=7)
    for left, right in zip(
        exact_search(queries, SlicedStore(wide, 12), 30), exact_search(queries, stored, 30), strict=True
    ):
        assert left[0].tolist() == right[0].tolist() and left[1].tobytes() == right[1].tobytes()


def test_one_array_serves_all_steps_of_its_layer(tmp_path, wide, normalize):
    slice_store(tmp_path / "L6-D48", tmp_path / "p", [8, 24, 48])
    sizes = [Size(6, 8), Size(6, 24), Size(6, 48)]
    queries = {size: vectors_of(9, size.dim, normalize, seed=7) for size in sizes}
    funnel = Funnel.parse("6:8@200,6:24@60,6:48@10")
    views = open_sizes(wide, sizes)
    stored = open_sizes(tmp_path / "p", sizes)
    assert [type(view) for view in views.values()] == [SlicedStore, SlicedStore, EmbeddingStore]
    assert [type(store) for store in stored.values()] == [EmbeddingStore] * 3
    [left], [right] = funnel_search(queries, views, funnel), funnel_search(queries, stored, funnel)
    assert left[0].tolist() == right[0].tolist() and left[1].tobytes() == right[1].tobytes()


def test_memory_of_blocks_is_that_of_a_block(open_written):
    import tracemalloc

    wide = open_written([f"d{i}" for i in range(20_000)], np.ones((20_000, 256), "f4"), shard_size=3000)
    tracemalloc.start()
    for _ in SlicedStore(wide, 16).blocks(10_000, np.float32):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 10_000 * 16 * 4


def test_stored_sizes(tmp_path, write_store):
    ids = list("abc")
    for layer, dim in [(2, 4), (6, 8), (6, 16)]:
        write_store(tmp_path / "p" / f"L{layer}-D{dim}", ids, np.ones((3, dim), "f4"), size=Size(layer, dim))
    assert stored_sizes(tmp_path / "p") == [Size(2, 4), Size(6, 8), Size(6, 16)]
    assert stored_sizes(tmp_path / "p" / "L6-D8") == [Size(6, 8)]
    assert stored_sizes(EmbeddingStore.open(tmp_path / "p" / "L6-D8")) == [Size(6, 8)]
    (tmp_path / "p" / "L2-D4").rename(tmp_path / "renamed")
    assert stored_sizes(tmp_path / "renamed") == [Size(2, 4)]


def test_the_narrowest_wider_store_is_cut(tmp_path, write_store):
    for layer, dim, value in [(6, 8, 1), (6, 16, 2), (2, 4, 3)]:
        vectors = np.full((1, dim), value, "f4")
        write_store(tmp_path / "p" / f"L{layer}-D{dim}", ["a"], vectors, size=Size(layer, dim))
    opened = open_sizes(tmp_path / "p", [Size(6, 5), Size(6, 9), Size(2, 4)])
    assert [store.vectors(np.array([0]))[0, 0] for store in opened.values()] == [1, 2, 3]
    for size in (Size(2, 5), Size(4, 4), Size(6, 17)):
        with pytest.raises(UserError, match=f"no size {size}, nor a wider one of its layer") as caught:
            open_sizes(tmp_path / "p", [size])
        assert caught.value.hint == "it has 2:4, 6:8, 6:16"
    with pytest.raises(UserError, match="the store has no size 2:5"):
        open_sizes(opened[Size(2, 4)], [Size(2, 5)])


def test_refusals(open_written):
    store = open_written(["a"], np.ones((1, 4), "f4"))
    for dim in (0, 5):
        with pytest.raises(UserError, match=f"{dim} dimensions cannot be cut from 6:4"):
            SlicedStore(store, dim)
    with pytest.raises(ValueError, match="max_rows"):
        next(SlicedStore(store, 2).blocks(0))
    with pytest.raises(IndexError):
        SlicedStore(store, 2).vectors(np.array([-1]))
