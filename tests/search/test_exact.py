import sys

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.engines import EngineOptions, make_candidate_generator, plan_memory
from starbucks_retrieval.search.engines import exact as exact_module


def named(store, found):
    """Results of exact_search as [(docid, score), …] per query."""
    return [list(zip(store.ids(row), score)) for rows, scores in found for row, score in zip(rows, scores, strict=True)]


def shuffled_ids(count, seed=3):
    return [f"d{number}" for number in np.random.default_rng(seed).permutation(count)]


def random_vectors(count, dim, seed):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.mark.parametrize("store_dtype", ["float32", "float16"])
@pytest.mark.parametrize(("count", "dim", "depth"), [(1, 1, 1), (700, 24, 10), (700, 24, 300), (333, 5, 333)])
def test_equals_brute_force(open_written, brute_force, store_dtype, count, dim, depth):
    ids, vectors, queries = shuffled_ids(count), random_vectors(count, dim, 1), random_vectors(30, dim, 2)
    store = open_written(ids, vectors, store_dtype=store_dtype)
    stored = vectors.astype(store_dtype)
    assert named(store, exact_search(queries, store, depth)) == brute_force(queries, ids, stored, depth)


def tied_corpus():
    """A thousand passages that hold few distinct vectors, near copies of those, and zeros."""
    rng = np.random.default_rng(5)
    distinct = rng.standard_normal((6, 16)).astype(np.float32)
    vectors = distinct[rng.integers(0, 6, 1000)]
    near = rng.random(1000) < 0.3
    vectors[near] *= 1 + rng.integers(-2, 3, (near.sum(), 16)).astype(np.float32) * np.float32(2**-23)
    vectors[rng.random(1000) < 0.1] = 0
    queries = np.concatenate([distinct[:3], rng.standard_normal((9, 16)).astype(np.float32), np.zeros((1, 16), "f4")])
    return shuffled_ids(1000), vectors, queries


def test_ties_across_the_boundary(open_written, brute_force):
    ids, vectors, queries = tied_corpus()
    store = open_written(ids, vectors)
    for depth in (1, 7, 250):
        assert named(store, exact_search(queries, store, depth)) == brute_force(queries, ids, vectors, depth)


def test_a_corpus_of_identical_documents(open_written):
    ids = shuffled_ids(2000)
    store = open_written(ids, np.tile(random_vectors(1, 8, 1), (2000, 1)))
    expected = sorted(ids, reverse=True)[:25]
    for found in named(store, exact_search(random_vectors(4, 8, 2), store, 25, max_memory=1_000)):
        assert [docid for docid, _ in found] == expected
        assert len({score for _, score in found}) == 1


def test_near_ties_that_single_precision_cannot_tell_apart(open_written, brute_force):
    """Large terms that cancel: float32 sums are off by more than the scores differ, so FAISS's order is of no use."""
    rng = np.random.default_rng(11)
    large = rng.standard_normal((1500, 32)).astype(np.float32) * 10_000
    vectors = np.concatenate([large, -large, rng.standard_normal((1500, 4)).astype(np.float32)], axis=1)
    queries = np.ones((5, 68), np.float32) + random_vectors(5, 68, 12) * np.float32(2**-20)
    queries[:, 32:64] = queries[:, :32]
    ids = shuffled_ids(1500)
    store = open_written(ids, vectors)
    wrong = np.argsort(-(queries @ vectors.T), axis=1)[:, :20]
    right = brute_force(queries, ids, vectors, 20)
    assert [[ids[row] for row in line] for line in wrong] != [[docid for docid, _ in line] for line in right]
    found = named(store, exact_search(queries, store, 20))
    assert [[docid for docid, _ in line] for line in found] == [[docid for docid, _ in line] for line in right]


@pytest.mark.parametrize("corpus", slow_except(["tied"], ["tied", "random"]))
def test_results_do_not_depend_on_batch_size_and_memory(tmp_path, open_written, corpus):
    if corpus == "tied":
        ids, vectors, queries = tied_corpus()
    else:
        ids, vectors, queries = shuffled_ids(1000), random_vectors(1000, 50, 1), random_vectors(40, 50, 2)
    results = set()
    for shard_size in (64, 300, 4096):
        store = open_written(ids, vectors, name=f"by-{shard_size}", shard_size=shard_size)
        for options in (
            {},
            {"batch_size": 1},
            {"batch_size": 7, "max_memory": 200_000, "threads": 1},
            {"batch_size": -1, "max_memory": 1},
            {"batch_size": 13, "max_memory": 2**20, "threads": 2},
        ):
            found = list(exact_search(queries, store, 30, **options))
            results.add(
                np.concatenate([rows for rows, _ in found]).tobytes()
                + np.concatenate([scores for _, scores in found]).tobytes()
            )
    assert len(results) == 1


def test_equal_scores_fall_to_the_greater_docid_by_bytes(open_written):
    ids = ["a", "b", "é", "Z", "10", "9", "中", "🙂", "a0"]
    store = open_written(ids, np.ones((9, 3), np.float32))
    [found] = named(store, exact_search(np.ones((1, 3)), store, 9))
    assert [docid for docid, _ in found] == ["🙂", "中", "é", "b", "a0", "a", "Z", "9", "10"]
    assert {score for _, score in found} == {np.float32(3)}


@pytest.mark.parametrize("depth", [5, 6, 1000])
def test_depth_beyond_the_corpus_gives_what_there_is(open_written, depth):
    store = open_written(["a", "b", "c", "d", "e"], random_vectors(5, 4, 1))
    [(rows, scores)] = exact_search(random_vectors(2, 4, 2), store, depth)
    assert rows.shape == scores.shape == (2, 5)
    assert np.array_equal(np.sort(rows, axis=1), np.tile(np.arange(5), (2, 1)))


def test_few_candidates_are_looked_up_again(open_written, monkeypatch):
    """Ties that reach beyond the candidates need the second pass; ordinary scores do not."""
    calls = []
    real = exact_module._rescan
    monkeypatch.setattr(exact_module, "_rescan", lambda *args: calls.append(len(args[0])) or real(*args))
    ids, vectors, queries = tied_corpus()
    list(exact_search(queries, open_written(ids, vectors, name="tied"), 100))
    assert sum(calls) >= 3
    calls.clear()
    list(exact_search(queries, open_written(ids, random_vectors(1000, 16, 1), name="random"), 100))
    assert sum(calls) <= 1  # the query of zeros


def test_memory_stays_flat(open_written):
    import tracemalloc

    peaks = []
    for count in (5_000, 20_000):
        store = open_written(
            [f"d{i}" for i in range(count)], random_vectors(count, 64, 1), name=str(count), shard_size=1000
        )
        tracemalloc.start()
        list(exact_search(random_vectors(50, 64, 2), store, 20, max_memory=1_000_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
    assert peaks[1] < 1_500_000


@pytest.mark.parametrize("depth", [0, -1])
def test_depth_below_one_is_refused(open_written, depth):
    store = open_written(["a"], np.ones((1, 4), "f4"))
    with pytest.raises(UserError, match=f"--depth {depth}"):
        exact_search(np.ones((1, 4)), store, depth)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_queries_are_named(open_written, value):
    queries = np.ones((3, 4), "f4")
    queries[2, 1] = value
    with pytest.raises(UserError, match="query 2"):
        exact_search(queries, open_written(["a"], np.ones((1, 4), "f4")), 1)


def test_other_refusals(open_written):
    store = open_written(["a"], np.ones((1, 4), "f4"))
    for queries, options, what in [
        (np.ones((1, 5)), {}, "do not fit passages of 4 dimensions"),
        (np.ones(4), {}, "do not fit"),
        (np.ones((1, 4)), {"batch_size": 0}, "--batch_size 0"),
        (np.full((1, 4), 3e38), {}, "do not fit single precision"),
    ]:
        with pytest.raises(UserError, match=what):
            exact_search(queries, store, 1, **options)


def test_missing_faiss_says_how_to_get_it(open_written, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError) as caught:
        exact_search(np.ones((1, 4)), open_written(["a"], np.ones((1, 4), "f4")), 1)
    assert caught.value.hint == "pip install faiss-cpu (or faiss-gpu on a CUDA machine; never both)"


@pytest.mark.parametrize("store_dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", slow_except([np.nan, np.inf], [np.nan, np.inf, -np.inf]))
@pytest.mark.parametrize("engine", [("faiss", None, "auto"), ("torch", "cpu", "fp32"), ("torch", "cpu", "bf16")])
@pytest.mark.parametrize("max_memory", [2 * 10**9, 10_000])
def test_damaged_passages_are_refused(open_written, store_dtype, value, engine, max_memory):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    store = open_written([f"d{i}" for i in range(300)], vectors, store_dtype=store_dtype)
    path = store.folders[0] / "00002.vectors.npy"  # of 64 rows
    held = np.load(path)
    held[5, 3] = value
    np.save(path, held)
    store.skip_checksums()
    for queries in (vectors[:1], vectors[:40], np.zeros((2, 8), np.float32)):
        with pytest.raises(UserError, match="a stored vector has NaN or infinity"):
            options = {
                "generator": make_candidate_generator(engine[0], EngineOptions(*engine[1:])),
                "max_memory": max_memory,
            }
            list(exact_search(queries, store, 5, **options))


@pytest.mark.parametrize(("before", "threads", "after"), [(128_000, 2, 1600), (128_000, 200, 128_000), (20, 2, 20)])
def test_faiss_multiplies_small_batches_unless_its_user_chose_when(monkeypatch, before, threads, after):
    faiss = pytest.importorskip("faiss")
    at_first = faiss.cvar.distance_compute_blas_threshold
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: threads)
    try:
        faiss.cvar.distance_compute_blas_threshold = before
        assert exact_module.import_faiss().cvar.distance_compute_blas_threshold == after
    finally:
        faiss.cvar.distance_compute_blas_threshold = at_first


@pytest.mark.parametrize(
    ("queries", "dim", "depth", "rows"),
    [(1, 64, 10, 2**16), (16, 64, 10, 2**16), (17, 64, 10, 2**18), (100, 64, 100_000, 412_628), (100, 4, 10, 500_000)],
)
def test_blocks_of_faiss_stay_small(queries, dim, depth, rows):
    """Whatever the memory limit; but not so small that lists are merged more often than filled."""
    assert plan_memory(2 * 10**9, -1, depth, 500_000, dim).block_for(queries, dim) == rows
