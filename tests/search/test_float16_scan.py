"""Few queries over float16 stores: the results of matrix products, to the bit, without converting the store."""

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import FEW, plan_memory
from starbucks_retrieval.search.engines import float16_scan as scan_module
from starbucks_retrieval.search.engines.exact import FaissCandidateGenerator, exact_search
from starbucks_retrieval.search.engines.float16_scan import hold, scan_float16
from starbucks_retrieval.search.engines.ray import RowRangeView
from starbucks_retrieval.search.stores import SlicedStore
from starbucks_retrieval.store import EmbeddingStore

DIM, COUNT = 24, 1100


@pytest.fixture
def corpus():
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((COUNT, DIM), dtype=np.float32).astype(np.float16)
    vectors[500:560] = vectors[20]  # equal scores at the end of a list
    return [f"d{row * 7919 % COUNT}" for row in range(COUNT)], vectors, rng.standard_normal((FEW, DIM), np.float32)


@pytest.fixture
def faiss():
    module = FaissCandidateGenerator().faiss
    before = module.omp_get_max_threads()
    yield module
    module.omp_set_num_threads(before)


def as_bytes(results):
    return [(rows.tobytes(), scores.tobytes()) for rows, scores in results]


def by_products(queries, store, depth, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(FaissCandidateGenerator, "scans_float16", False)
        return as_bytes(exact_search(queries, store, depth, batch_size=len(queries)))


@pytest.mark.parametrize("queries", slow_except([1, FEW - 1], [1, 3, FEW - 1]))
@pytest.mark.parametrize("depth", slow_except([10, COUNT], [1, 10, COUNT - 1, COUNT]))
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_as_by_products(open_written, monkeypatch, faiss, corpus, queries, depth, threads):
    ids, vectors, asked = corpus
    store = open_written(ids, vectors, store_dtype="float16", shard_size=300)
    monkeypatch.setattr(scan_module, "_NUMBERS_PER_THREAD", 1)
    expected = by_products(asked[:queries], store, depth, monkeypatch)
    monkeypatch.setattr(EmbeddingStore, "blocks", None)  # nothing is converted
    generator = FaissCandidateGenerator(threads)
    assert as_bytes(exact_search(asked[:queries], store, depth, generator=generator)) == expected


def test_many_queries_float32_stores_and_gpus_take_products(open_written, monkeypatch, corpus):
    ids, vectors, queries = corpus
    monkeypatch.setattr("starbucks_retrieval.search.engines.exact.scan_float16", None)
    list(exact_search(queries, open_written(ids, vectors, name="16", store_dtype="float16"), 5))
    list(exact_search(queries[:1], open_written(ids, vectors, name="32"), 5))
    with pytest.raises(TypeError):
        list(exact_search(queries[:1], open_written(ids, vectors, name="few", store_dtype="float16"), 5))


@pytest.mark.parametrize("held", [False, True])
def test_a_cut_of_a_wider_store(open_written, monkeypatch, corpus, held):
    ids, vectors, queries = corpus
    wide = open_written(ids, vectors, store_dtype="float16", shard_size=300)
    view, queries = SlicedStore(wide, 10), np.ascontiguousarray(queries[:3, :10])
    expected = by_products(queries, view, 40, monkeypatch)
    if held:
        hold(view, 2 * COUNT * 10, queries=3)
        assert view.block_dtype == np.float16
        monkeypatch.setattr(wide, "rows", None)  # the cut vectors are in memory
    assert as_bytes(exact_search(queries, view, 40)) == expected


def test_a_range_of_rows(open_written, monkeypatch, corpus):
    ids, vectors, queries = corpus
    view = RowRangeView(open_written(ids, vectors, store_dtype="float16", shard_size=300), 250, 950)
    assert list(view.ranges(200)) == [(0, 50), (50, 250), (250, 350), (350, 550), (550, 650), (650, 700)]
    expected = by_products(queries[:2], view, 40, monkeypatch)
    assert as_bytes(exact_search(queries[:2], view, 40)) == expected


def test_nothing_outside_exceeds_the_ceiling(open_written, corpus):
    ids, vectors, queries = corpus
    store = open_written(ids, vectors, store_dtype="float16", shard_size=300)
    plan = plan_memory(10**6, 100, 60, COUNT, DIM)
    rows, ceiling, _ = FaissCandidateGenerator().generate(queries[:5], store, plan, 60, "")
    exact = queries[:5].astype(np.float64) @ vectors.astype(np.float64).T
    for line, found, highest in zip(exact, rows, ceiling):
        assert len(set(found)) == len(found) == plan.candidates
        assert np.delete(line, found).max() <= highest


def test_fewer_rows_in_a_thread_than_are_wanted(faiss, corpus, monkeypatch):
    _, vectors, queries = corpus
    monkeypatch.setattr(scan_module, "_NUMBERS_PER_THREAD", 1)
    faiss.omp_set_num_threads(3)
    ranges = [(0, 2), (2, 4), (4, 7)]
    scores, rows = scan_float16(faiss, queries[:2], lambda start, stop: vectors[start:stop], ranges, 7)
    exact = queries[:2] @ vectors[:7].astype(np.float32).T
    assert np.array_equal(np.sort(rows), [range(7)] * 2)
    assert np.allclose(np.take_along_axis(exact, rows, 1), scores, atol=1e-5)


def test_what_is_held(open_written, corpus):
    ids, vectors, _ = corpus
    store = open_written(ids, vectors, name="16", store_dtype="float16")
    hold(store, 0, queries=1)
    assert store.mapped and store._held is None, "float16 is scanned where it is"
    hold(store, 4 * COUNT * DIM, queries=FEW)
    assert store._held.dtype == np.float32
    single = open_written(ids, vectors, name="32")
    hold(single, 4 * COUNT * DIM, queries=1)
    assert single._held.dtype == np.float32


def test_a_damaged_store_is_refused(open_written, corpus, monkeypatch):
    ids, vectors, queries = corpus
    store = open_written(ids, vectors, store_dtype="float16", shard_size=300)
    monkeypatch.setattr(scan_module, "_NUMBERS_PER_THREAD", 1)
    path = sorted(store.folders[0].glob("*.npy"))[-1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x7C
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        list(exact_search(queries[:1], EmbeddingStore.open(store.folders[0]), 5))
