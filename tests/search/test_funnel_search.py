from itertools import product

import numpy as np
import pytest

from starbucks_retrieval.search import scores as module
from starbucks_retrieval.search.funnel_search import rescore
from starbucks_retrieval.search.indexes import build_index, open_index
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.scores import score_candidates

COUNT = 800


def everything(queries, rows, keep, store):
    return best(rows, score_candidates(queries, rows, store, 10**6), keep, store)


def shortlists(queries, candidates):
    return np.stack([np.random.default_rng(i).permutation(COUNT)[:candidates] for i in range(queries)])


def corpora():
    rng = np.random.default_rng(3)
    plain = rng.standard_normal((COUNT, 16)).astype(np.float32)
    tied = plain[rng.integers(0, 5, COUNT)]
    large = rng.standard_normal((COUNT, 6)).astype(np.float32) * 10_000
    cancelling = np.concatenate([large, -large, rng.standard_normal((COUNT, 4)).astype(np.float32)], axis=1)
    return {"plain": plain, "tied": tied, "cancelling": cancelling, "zeros": np.zeros((COUNT, 16), np.float32)}


QUICK = [
    ("plain", "float16", True),
    ("tied", "float32", False),
    ("cancelling", "float16", True),
    ("zeros", "float32", False),
]


@pytest.mark.parametrize(
    ("name", "store_dtype", "mapped"),
    [
        *QUICK,
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(corpora(), ("float32", "float16"), (False, True))
            if case not in QUICK
        ),
    ],
)
def test_rescore_equals_scoring_all_rows(open_written, name, store_dtype, mapped, monkeypatch):
    ids = [f"d{i}" for i in np.random.default_rng(1).permutation(COUNT)]
    store = open_written(ids, corpora()[name], store_dtype=store_dtype)
    if mapped:
        store.keep_mapped()
    assert store.mapped == mapped
    queries = np.random.default_rng(2).standard_normal((12, 16)).astype(np.float32)
    if name == "cancelling":
        queries[:, 6:12] = queries[:, :6] = 1 + queries[:, :6] * np.float32(2**-20)
    for candidates, keep in [(500, 5), (500, 100), (500, 300), (500, 500), (500, 900), (80, 1), (1, 1)]:
        rows = shortlists(12, candidates)
        expected = everything(queries, rows, keep, store)
        few = 4 * 500 * 16  # four queries at a time
        for memory, numbers, threads in (
            (10**9, 2**23, 1),
            (10**9, few, 1),
            (10**9, few, 3),
            (300_000, 2**23, 3),
            (1, 2**23, 1),
        ):
            monkeypatch.setattr(module, "_READ_AT_ONCE", numbers)
            found = rescore(queries, rows, keep, store, memory, threads)
            assert found[0].tolist() == expected[0].tolist()
            assert found[1].tobytes() == expected[1].tobytes()


@pytest.mark.parametrize("keep", [5, 400])
def test_threads_share_the_queries(open_written, monkeypatch, keep):
    """Of long results too, which one thread made before."""
    shares = []
    real = module.score_candidates
    monkeypatch.setattr(
        module, "score_candidates", lambda queries, *rest: shares.append(len(queries)) or real(queries, *rest)
    )
    store = open_written([f"d{i}" for i in range(COUNT)], corpora()["plain"], "plain")
    queries = np.random.default_rng(2).standard_normal((30, 16)).astype(np.float32)
    rescore(queries, shortlists(30, 500), keep, store, 10**9, threads=3)
    assert shares == [30]  # 240,000 numbers are too few for a second thread
    monkeypatch.setattr(module, "_NUMBERS_PER_THREAD", 100_000)
    rescore(queries, shortlists(30, 500), keep, store, 10**9, threads=3)
    monkeypatch.setattr(module, "_NUMBERS_PER_THREAD", 1)
    rescore(queries, shortlists(30, 500), keep, store, 10**9, threads=3)
    assert shares == [30, 15, 15, 10, 10, 10]


def test_threads_share_the_queries_of_an_index(open_written, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    store = open_written([f"d{i}" for i in range(COUNT)], corpora()["plain"])
    build_index(store, "Flat", tmp_path / "index")
    queries = np.random.default_rng(2).standard_normal((30, 16)).astype(np.float32)
    shares = []
    real = module.score_candidates
    monkeypatch.setattr(
        module, "score_candidates", lambda queries, *rest: shares.append(len(queries)) or real(queries, *rest)
    )
    monkeypatch.setattr(module, "_NUMBERS_PER_THREAD", 1)
    index = open_index(tmp_path / "index", store)
    found = [index.search(queries, 9, threads=threads) for threads in (3, 1)]
    assert shares == [10, 10, 10, 30]
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])
