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
from starbucks_retrieval.search.engines.rounding import largest_bf16_move
from starbucks_retrieval.search.engines.tensor_blocks import Converter
from starbucks_retrieval.search.scores import double_error, score_candidates, score_rows
from starbucks_retrieval.search.stores import SlicedStore, array_spec
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import MemoryStore, open_store
from starbucks_retrieval.store.convert import quantise_stores
from starbucks_retrieval.store.parts import has_parts
from starbucks_retrieval.threads import share


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
