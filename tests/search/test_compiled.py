"""Loops that Numba compiles give the results of NumPy's and torch's, which need no other package."""

import sys
import threading

import numpy as np
import pytest
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search, loops
from starbucks_retrieval.search.engines import EngineOptions, make_candidate_generator, sample, scan_threads
from starbucks_retrieval.search.engines import exact as exact_module
from starbucks_retrieval.search.engines import torch as engine_module
from starbucks_retrieval.search.engines.rounding import ErrorBound, bf16_bound, largest_bf16_move
from starbucks_retrieval.search.engines.scored_rows import NO_SUM, ScoredRows, filled_up, needed_lists
from starbucks_retrieval.search.engines.tensor_blocks import Converter
from starbucks_retrieval.search.scores import double_error, score_candidates, score_rows, single_error
from starbucks_retrieval.search.stores import SlicedStore, array_spec
from starbucks_retrieval.search.threads import share
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import MemoryStore, open_store
from starbucks_retrieval.store.convert import quantise_stores
from starbucks_retrieval.store.parts import has_parts


@pytest.fixture(scope="module")
def compiled():
    pytest.importorskip("numba", exc_type=ImportError)
    from starbucks_retrieval.search import compiled

    return compiled


@pytest.fixture
def use_compiled(compiled, monkeypatch):
    monkeypatch.setattr(loops, "_compiled", compiled)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [1, 7, 32, 769])
def test_the_same_scores(compiled, monkeypatch, dim, dtype):
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((200, dim)).astype(dtype)
    vectors[:50] *= dtype(1e-6)  # denormal as float16
    rows = np.stack([rng.integers(0, 200, 90) for _ in range(3)])
    queries = rng.standard_normal((3, dim)).astype(np.float32).astype(np.float64)
    errors = double_error(queries, float(np.linalg.norm(vectors.astype(np.float64), axis=1).max()))
    expected = score_rows(vectors, rows, queries, errors)
    monkeypatch.setattr(loops, "_compiled", compiled)
    vectors.flags.writeable = False  # as mapped files are
    assert score_rows(vectors, rows, queries, errors).tobytes() == expected.tobytes()
    assert score_rows(np.asfortranarray(vectors), rows, queries, errors).tobytes() == expected.tobytes()
    all_doubtful = score_rows(vectors, rows, queries, np.full(3, 1e6))
    assert all_doubtful.tobytes() == expected.tobytes()


@pytest.mark.parametrize("store_dtype", ["float16", "float32", "int8"])
def test_candidates_are_scored_where_they_are_stored(compiled, open_written, monkeypatch, store_dtype):
    rng = np.random.default_rng(2)
    vectors, queries = (rng.standard_normal((n, 24)).astype(np.float32) for n in (500, 6))
    rows = np.stack([rng.permutation(500)[:90] for _ in queries])  # of all five shards, in any order
    ids, wide = [f"d{i}" for i in range(500)], "float16" if store_dtype == "int8" else store_dtype
    store = open_written(ids, vectors, store_dtype=wide, shard_size=100)
    if store_dtype == "int8":
        quantise_stores(store.folders, "int8")
        store = open_store(store.folders[0].parent / "int8")
    in_memory = MemoryStore(array_spec(500, Size(1, 24)), ids, store.vectors(np.arange(500)))
    view = SlicedStore(store, 8)
    asked = {store: queries, in_memory: queries, view: np.ascontiguousarray(queries[:, :8])}
    assert [has_parts(source) for source in asked] == [store_dtype != "int8", True, False]
    expected = [score_candidates(asked[source], rows, source, 10**6) for source in asked]
    monkeypatch.setattr(loops, "_compiled", compiled)
    for gathered in (10**6, 200, 1):
        for source, scores in zip(asked, expected):
            assert score_candidates(asked[source], rows, source, gathered).tobytes() == scores.tobytes()
    for row in (-1, 500):
        for source in (store, in_memory):
            with pytest.raises(IndexError):
                score_candidates(queries, np.full((6, 1), row), source, 10**6)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_damage_is_told(use_compiled, number):
    vectors = np.ones((5, 40), np.float16)
    vectors[3, 20] = number
    with pytest.raises(UserError, match="damaged"):
        score_rows(vectors, np.array([[0, 3]]), np.ones((1, 40)), np.array([1e-9]))


def test_every_float16_becomes_its_float32(compiled):
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    single, copy = np.empty((2, 256, 256), np.float32)
    compiled.to_single(halves, single)
    assert np.array_equal(single, halves.astype(np.float32), equal_nan=True)
    compiled.to_single(single, copy)
    assert copy.tobytes() == single.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bfloat16_is_torchs(compiled, dtype):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((64, 77)).astype(dtype)
    vectors[0] = 1 + 2.0**-8  # half-way between two, to the even one
    vectors[1] = 1 + 3 * 2.0**-8
    vectors[2], vectors[3] = 0, -0.0
    if dtype == np.float32:
        vectors[4] = 1e-40
    bits = np.empty(vectors.shape, np.int16)
    compiled.to_bfloat16(vectors, bits)
    single = torch.from_numpy(vectors.astype(np.float32))
    assert np.array_equal(bits, single.bfloat16().view(torch.int16).numpy())


# Products in float32 are of vectors that have been converted.
@pytest.mark.parametrize(("coarse", "stored"), [(True, np.float16), (True, np.float32), (False, np.float32)])
@pytest.mark.parametrize("queries", [1, 31, 32, 33, 100])
def test_rows_above_the_floor_are_appended_with_exact_scores(compiled, queries, coarse, stored):
    rng = np.random.default_rng(queries)
    vectors, lines = rng.standard_normal((70, 9)).astype(stored), rng.standard_normal((queries, 9)).astype(np.float32)
    scores = torch.from_numpy(rng.integers(-9, 9, (70, queries)).astype(np.float32))  # the loop takes them as they are
    scores[3, 0] = torch.nan
    floors = rng.choice([5, -2, 8, 20, -np.inf], queries).astype(np.float32)
    sums, rows = np.full((queries, 75), -7.0), np.full((queries, 75), -7)
    before = rng.integers(0, 5, queries)
    filled = before.copy()
    bits = scores.bfloat16().view(torch.int16).numpy().view(np.uint16) if coarse else scores.numpy()
    assert compiled.append_scored(bits, floors, 1000, vectors, lines, sums, rows, filled) == 70
    exact = vectors.astype(np.float64) @ lines.astype(np.float64).T
    for query in range(queries):
        above = np.flatnonzero(scores[:, query].numpy() > floors[query])
        low, high = before[query], filled[query]
        assert high == low + len(above)
        assert rows[query, low:high].tolist() == (1000 + above).tolist()
        assert np.allclose(sums[query, low:high], exact[above, query], rtol=0, atol=1e-12)
        assert (sums[query, high:] == -7).all() and (sums[query, :low] == -7).all()


def test_appending_ends_when_a_list_is_full(compiled):
    vectors, queries = np.eye(6, dtype=np.float32), np.ones((2, 6), np.float32)
    scores = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [1, 1], [1, 1]], np.float32)
    sums, rows, filled = np.zeros((2, 3)), np.zeros((2, 3), np.int64), np.zeros(2, np.int64)
    floors = np.full(2, 0.5, np.float32)
    assert compiled.append_scored(scores, floors, 0, vectors, queries, sums, rows, filled) == 4
    assert rows[0].tolist() == [0, 1, 3] and rows[1, : filled[1]].tolist() == [1]
    filled[0] = 0
    assert compiled.append_scored(scores[4:], floors, 4, vectors[4:], queries, sums, rows, filled) == 2
    assert rows[0, : filled[0]].tolist() == [4, 5] and rows[1].tolist() == [1, 4, 5]


@pytest.mark.parametrize("floored", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists_are_those_of_a_sort_of_all_scores(compiled, dtype, floored):
    rng = np.random.default_rng(1)
    vectors, queries = (rng.standard_normal((n, 16)).astype(np.float32) for n in (2000, 5))
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    ranked = -np.sort(-exact, axis=1)
    longest = float(np.linalg.norm(vectors, axis=1).max()) * 1.001
    near = torch.from_numpy(queries).to(dtype)
    bound = ErrorBound(0.0, single_error(queries, longest))
    if dtype == torch.bfloat16:
        bound = bf16_bound(queries, near, largest_bf16_move(longest, 16), longest)
    floors = bound.floors(ranked[:, 12]) if floored else np.full(5, -np.inf, np.float32)
    errors = double_error(queries, longest)
    parts = [ScoredRows(queries, near, floors, bound, errors, 10, 12, 64, compiled) for _ in range(2)]
    for number, start in enumerate(range(0, 2000, 150)):  # blocks are cut into the rows of a product
        parts[number % 2].add(start, vectors[start : start + 150])
    lists, outside, least = needed_lists(parts)
    for query, (rows, sums) in enumerate(lists):
        assert np.allclose(-np.sort(-sums), ranked[query, :10], rtol=0, atol=1e-12)  # no scores are nearly equal
        assert np.allclose(exact[query, rows], sums, rtol=0, atol=1e-12)
    assert (ranked[:, 10] <= np.maximum(outside, least) + 1e-12).all()
    assert (outside < least).all() and (least < ranked[:, 9]).all()


def test_lists_that_became_full_keep_their_best(compiled):
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((2000, 16)).astype(np.float32)
    queries = rng.standard_normal((3, 16)).astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    vectors = vectors[np.argsort(exact[1])]  # each is better than all before
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    longest = float(np.linalg.norm(vectors, axis=1).max()) * 1.001
    bound, errors = ErrorBound(0.0, single_error(queries, longest)), double_error(queries, longest)
    floors = np.full(3, -1e9, np.float32)  # which no score is below
    part = ScoredRows(queries, torch.from_numpy(queries), floors, bound, errors, 10, 12, 500, compiled)
    part.add(0, vectors)
    lists, outside, least = needed_lists([part])
    for query, (rows, _) in enumerate(lists):
        assert sorted(rows.tolist()) == sorted(np.argsort(-exact[query])[:10].tolist())
    assert (outside < least).all() and part.filled.max() < part.width


def test_short_lists_are_filled_up_and_leave_the_result_open(compiled):
    vectors, queries = np.eye(4, dtype=np.float32), np.array([[0.5, 0.25, 0, 0], [1, 2, 3, 4]], np.float32)
    bound, errors = ErrorBound(0.0, single_error(queries, 1.0)), double_error(queries, 1.0)
    near, floors = torch.from_numpy(queries), np.array([-np.inf, 3.5], np.float32)
    part = ScoredRows(queries, near, floors, bound, errors, 4, 6, 64, compiled)
    part.add(20, vectors)
    lists, outside, least = needed_lists([part])
    assert outside[0] < least[0] < 0
    assert least[1] == -np.inf and 3.5 <= outside[1] < 3.51
    rows, sums = filled_up(lists)
    assert sorted(sums[0].tolist()) == [0, 0, 0.25, 0.5] and sorted(rows[0].tolist()) == [20, 21, 22, 23]
    assert sums[1].tolist() == [4, NO_SUM, NO_SUM, NO_SUM] and rows[1].tolist() == [23, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("misleading", [False, True])
def test_queries_that_a_sample_misled_are_scanned_again(open_written, monkeypatch, use_compiled, dtype, misleading):
    monkeypatch.setattr(sample, "_EXPECTED", 8)
    rng = np.random.default_rng(8)
    vectors = rng.uniform(0.1, 1, (6000, 24)).astype(np.float32)
    if misleading:  # the sampled passages are the best of all
        starts = np.linspace(0, 6000 - 32, 11).astype(np.int64)
        vectors[(starts[:, None] + np.arange(32)).ravel()] += rng.uniform(1, 9, (352, 1)).astype(np.float32)
    queries = rng.uniform(0.1, 1, (20, 24)).astype(np.float32)
    store = open_written([f"d{number}" for number in rng.permutation(6000)], vectors)
    with monkeypatch.context() as patch:
        patch.setattr(loops, "_compiled", None)
        [expected] = exact_search(queries, store, 100)
    floors, scans = [], []
    real_sample, real_scan = engine_module.sampled_scores, engine_module.scan_in_threads
    monkeypatch.setattr(engine_module, "sampled_scores", lambda *args: floors.append(real_sample(*args)) or floors[-1])
    monkeypatch.setattr(engine_module, "scan_in_threads", lambda *args: scans.append(args) or real_scan(*args))
    monkeypatch.setattr(exact_module, "_rescan", None)  # nothing is left for it
    [found] = exact_search(
        queries, store, 100, generator=make_candidate_generator("torch", EngineOptions("cpu", dtype))
    )
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]
    assert floors[0] is not None and len(scans) == (2 if misleading else 1)


@pytest.mark.parametrize("store_dtype", ["float16", "float32"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_search_gives_the_same_bits(open_written, monkeypatch, use_compiled, dtype, store_dtype):
    monkeypatch.setattr(engine_module, "_BLOCK_ROWS", {"cpu": 256})
    monkeypatch.setattr(sample, "_EXPECTED", 4)
    monkeypatch.setattr(scan_threads, "_PRODUCTS_PER_THREAD", 10**5)
    torch.set_num_threads(2)
    rng = np.random.default_rng(4)
    vectors, queries = rng.standard_normal((6000, 24)).astype(np.float32), rng.standard_normal((20, 24))
    vectors[::7] = vectors[0]  # ties, which docids decide
    store = open_written([f"d{i}" for i in rng.permutation(6000)], vectors, store_dtype=store_dtype, shard_size=1000)
    generator = make_candidate_generator("torch", EngineOptions("cpu", dtype))
    view, held = SlicedStore(store, 8), SlicedStore(store, 8)
    held.hold(2**30)
    for searched in (store, view, held):
        searched_for = queries[:, : searched.spec.size.dim]
        for depth in (1, 100):
            with monkeypatch.context() as patch:
                patch.setattr(loops, "_compiled", None)
                [expected] = exact_search(searched_for, searched, depth)
            [found] = exact_search(searched_for, searched, depth, generator=generator)
            assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


@pytest.mark.parametrize("length", [1e-21, 1.0, 1e30])  # of the smallest and the largest, squares do not fit a float32
def test_no_vector_moves_farther_than_is_said(open_written, length):
    vectors = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32) * np.float32(length)
    vectors[0] = 0
    vectors[0, 0] = length * (1 + 2.0**-8)  # the largest share by which a number moves
    store = open_written([f"d{i}" for i in range(30)], vectors)
    [(_, block, moved)] = Converter(store, 30, torch.bfloat16)(0, store.rows(0, 30))
    distance = np.linalg.norm(vectors.astype(np.float64) - block.double().numpy(), axis=1)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert distance.max() <= moved
    assert all(far <= largest_bf16_move(norm, 20) for far, norm in zip(distance, norms))


@pytest.fixture
def afresh(monkeypatch):
    monkeypatch.setattr(loops, "_read", 0)
    monkeypatch.setattr(loops, "_compiled", None)
    monkeypatch.setattr(loops, "_WORTH_COMPILING", 1000)


def test_loops_are_compiled_after_enough_work(compiled, afresh):
    assert [(loops.will_be_compiled(400), loops.compiled_loops(400)) for _ in range(4)] == [
        *[(False, None)] * 2,
        *[(True, compiled)] * 2,
    ]


def test_one_thread_compiles_and_the_others_go_on(compiled, afresh, monkeypatch):
    with loops._lock:
        found = []
        thread = threading.Thread(target=lambda: found.append(loops.compiled_loops(5000)))
        thread.start()
        thread.join()
    assert found == [None] and loops.compiled_loops(0) is compiled


def test_without_numba_nothing_is_tried_twice(afresh, monkeypatch):
    monkeypatch.setattr(loops, "_available", True)
    monkeypatch.setitem(sys.modules, "starbucks_retrieval.search.compiled", None)
    assert loops.compiled_loops(5000) is None
    monkeypatch.delitem(sys.modules, "starbucks_retrieval.search.compiled")
    assert loops.compiled_loops(5000) is None


def test_shared_work_is_done_once():
    assert sorted(item for items in share(range(100), 4, list) for item in items) == list(range(100))
    assert share(iter("ab"), 1, list) == [["a", "b"]]


def test_an_error_ends_shared_work():
    taken = []

    def work(items):
        for item in items:
            taken.append(item)
            raise ValueError(item)

    with pytest.raises(ValueError):
        share(range(100), 3, work)
    assert len(taken) <= 3
