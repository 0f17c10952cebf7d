"""Searching indexes: what they find, how exact the scores are, and what they refuse."""

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search, parse_parameters
from starbucks_retrieval.search.indexes import build_index, open_index, recall, sample_rows

pytest.importorskip("faiss")

COUNT, DIM = 2500, 32


def clustered(count, seed, spread=0.6):
    """Unit vectors around sixty centres that lie off the origin, as embeddings do."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(0).standard_normal((60, DIM)) + 0.4
    vectors = centres[rng.integers(0, 60, count)] + spread * rng.standard_normal((count, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def store(open_written):
    ids = [f"d{number}" for number in np.random.default_rng(3).permutation(COUNT)]
    return open_written(ids, clustered(COUNT, 1), normalize=True, shard_size=600)


@pytest.fixture
def queries():
    return clustered(40, 2)


@pytest.fixture
def saved(tmp_path, store):
    def save(factory, **options):
        folder = tmp_path / "index"
        build_index(store, factory, folder, threads=1, overwrite=True, **options)
        return open_index(folder, store)

    return save


def exact(queries, store, depth):
    found = list(exact_search(queries, store, depth))
    return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])


@pytest.mark.parametrize("store_dtype", slow_except(["float16"], ["float32", "float16"]))
def test_a_flat_index_is_exact_search(tmp_path, open_written, queries, store_dtype):
    vectors = clustered(COUNT, 1)
    vectors[700:740] = vectors[700]  # ties, which docids must settle
    store = open_written([f"é{i}" for i in range(COUNT)], vectors, store_dtype=store_dtype)
    build_index(store, "Flat", tmp_path / "index")
    queries = np.concatenate([queries, vectors[700:701]])
    index = open_index(tmp_path / "index", store)
    right_rows, right_scores = exact(queries, store, 50)
    for options in ({}, {"max_memory": 1}, {"max_memory": 300_000, "threads": 2}):
        rows, scores = index.search(queries, 50, **options)
        assert np.array_equal(np.stack(rows), right_rows)
        assert np.stack(scores).tobytes() == right_scores.tobytes()


FACTORIES = {  # what the rescored 10 best must share with the exact ones, at the least
    "Flat": 1.0,
    "HNSW16": 0.9,
    "HNSW16_SQ8": 0.9,
    "IVF16,Flat": 0.99,
    "IVF16,SQ8": 0.99,
    "IVF16_HNSW8,PQ8x4": 0.95,
    "IVF16,PQ8x4fs": 0.95,
    "OPQ8_16,IVF16,PQ8x4fs": 0.9,
    "PQ8x4": 0.95,
    "PQ8x4fs": 0.95,
    "PQ8x4,RFlat": 0.95,
    "SQ8": 0.99,
    "SQ4": 0.99,
    "SQfp16": 0.99,
    "RaBitQ": 0.95,
    "RQ4x4": 0.9,
    "PCAR16,IVF8,SQ8": 0.9,
    "Binary": 0.9,
}
QUICK = (
    "Flat",
    "HNSW16",
    "IVF16,Flat",
    "IVF16_HNSW8,PQ8x4",
    "PQ8x4fs",
    "PQ8x4,RFlat",
    "SQ4",
    "RaBitQ",
    "PCAR16,IVF8,SQ8",
    "Binary",
)


@pytest.mark.parametrize("factory", slow_except(QUICK, FACTORIES))
def test_every_kind_is_built_kept_and_searched(store, queries, saved, factory):
    index = saved(factory, train_sample=600)
    wide = {"nprobe": 16, "efSearch": 200}
    given = {name: value for name, value in wide.items() if name in index.parameters}
    rows, scores = index.search(queries, 10, parameters=given, rescore=5)
    assert recall(index, queries, 10, parameters=given, rescore=5)["recall@10"] >= FACTORIES[factory]
    vectors = store.vectors(np.arange(COUNT)).astype(np.float64)
    for line, line_scores, query in zip(rows, scores, queries.astype(np.float64)):
        assert len(set(line.tolist())) == len(line) == 10
        assert np.array_equal(line_scores, (vectors[line] @ query).astype(np.float32))
        assert (np.diff(line_scores) <= 0).all()


def test_scores_without_rescoring_are_the_index_own(queries, saved):
    index = saved("SQ4")
    rows, scores = index.search(queries, 20, rescore=0)
    again_rows, again_scores = index.search(queries, 20, rescore=None)
    assert all(np.array_equal(a, b) for a, b in zip(rows + scores, again_rows + again_scores))
    exact_scores = np.stack([index.store.vectors(line) @ query for line, query in zip(rows, queries)])
    off = np.abs(np.stack(scores) - exact_scores)
    assert 1e-4 < off.max() < 0.1
    assert (np.diff(np.stack(scores), axis=1) <= 0).all()


def test_bits_are_signs_around_the_medians(tmp_path, open_written):
    """Seven of the dimensions fill up the last byte, and must not count."""
    rng = np.random.default_rng(4)
    vectors = (rng.standard_normal((300, 9)) + 3 * np.arange(9)).astype(np.float32)
    store = open_written([f"d{i:03}" for i in range(300)], vectors)
    build_index(store, "Binary", tmp_path / "index")
    index = open_index(tmp_path / "index", store)
    assert np.array_equal(np.array(index.manifest.calibration, np.float32), np.median(vectors, axis=0))
    queries = (rng.standard_normal((5, 9)) + 3 * np.arange(9)).astype(np.float32)
    rows, scores = index.search(queries, 300, rescore=0)
    signs = np.where(vectors > np.median(vectors, axis=0), 1, -1)
    for line, line_scores, query in zip(rows, scores, queries):
        right = signs @ np.where(query > np.median(vectors, axis=0), 1, -1)
        order = sorted(range(300), key=lambda row: (right[row], row), reverse=True)
        assert line.tolist() == order
        assert line_scores.tolist() == right[order].tolist()


def test_recall_grows_with_nprobe(store, queries, saved):
    rows, _ = exact(queries, store, 20)
    index = saved("IVF32,Flat")
    found = [recall(index, queries, 20, at=(10,), exact=rows, parameters={"nprobe": n}) for n in (1, 4, 32)]
    by_nprobe = [shares["recall@10"] for shares in found]
    assert by_nprobe[0] < by_nprobe[1] <= by_nprobe[2] == 1
    index = saved("HNSW4", parameters={"efConstruction": 8})
    found = [
        recall(index, queries, 5, at=(5,), exact=rows, parameters={"efSearch": n}, rescore=1) for n in (1, 30, 900)
    ]
    by_ef = [shares["recall@5"] for shares in found]
    assert by_ef[0] < by_ef[1] < by_ef[2]
    assert index.parameters == {"efSearch": 16}  # a search leaves the index as it was
    shares = [recall(saved("Binary"), queries, 20, at=(10,), rescore=n)["recall@10"] for n in (0, 1, 4, 20)]
    assert shares == sorted(shares) and shares[0] < shares[1] < shares[3]


def test_recall_is_what_its_name_says(store, queries, saved):
    index = saved("IVF32,Flat")
    shares = recall(index, queries, 100)
    assert list(shares) == ["recall@10", "recall@100"]
    right, _ = exact(queries, store, 100)
    rows, _ = index.search(queries, 100)
    for k in (10, 100):
        counted = [len(set(given[:k].tolist()) & set(best[:k].tolist())) / k for given, best in zip(rows, right)]
        assert shares[f"recall@{k}"] == pytest.approx(np.mean(counted))
    assert 0 < shares["recall@100"] < shares["recall@10"] < 1
    assert list(recall(index, queries, 3)) == ["recall@3"]


@pytest.mark.parametrize("rescore", [4, 1, 0, None])
def test_missing_rows_are_dropped(tmp_path, open_written, rescore, caplog):
    """One list of three has five passages; one is empty, for its centre has lost all of them."""
    vectors = np.zeros((40, DIM), np.float32)
    vectors[:5, 0], vectors[5:, 1] = 1, 1
    vectors[:, 2] = np.linspace(0.01, 0.02, 40)
    store = open_written([f"d{i}" for i in range(40)], vectors, name="few")
    build_index(store, "IVF2,Flat", tmp_path / "few-index", threads=1)
    index = open_index(tmp_path / "few-index", store)
    queries = np.eye(DIM, dtype=np.float32)[:2]
    rows, scores = index.search(queries, 1000, rescore=rescore)
    assert sorted(rows[0].tolist()) == list(range(5)) and sorted(rows[1].tolist()) == list(range(5, 40))
    assert [len(line) for line in scores] == [5, 35]
    assert all(np.isfinite(line).all() for line in scores)
    assert "2 of 2 queries found fewer than 40 passages: raise nprobe" in caplog.text
    both, _ = index.search(queries, 1000, rescore=rescore, parameters={"nprobe": 2})
    assert [sorted(line.tolist()) for line in both] == [list(range(40))] * 2
    assert recall(index, queries, 40, at=(40,), rescore=rescore)["recall@40"] == 0.5


def test_queries_that_find_nothing(tmp_path, open_written):
    """A centre that holds no passage: trained on all, but only a sample's lists are full."""
    import faiss

    from starbucks_retrieval.search.indexes.vectors import VectorIndex

    vectors = np.eye(4, dtype=np.float32)[:2]
    store = open_written(["a", "b"], vectors)
    build_index(store, "IVF2,Flat", tmp_path / "index")
    index = open_index(tmp_path / "index", store)
    empty = VectorIndex.make("IVF2,Flat", 4, 1, {})
    empty.train(vectors)
    faiss.downcast_index(empty._index).add(vectors[:1])
    index._index = empty
    for rescore in (4, 0):
        rows, scores = index.search(vectors, 2, rescore=rescore)
        assert [line.tolist() for line in rows] == [[0], []]
        assert [len(line) for line in scores] == [1, 0]
        rows, scores = index.search(vectors[1:], 2, rescore=rescore)
        assert [line.tolist() for line in rows] == [[]] and scores[0].dtype == np.float32


def test_depth_beyond_the_corpus(open_written, tmp_path, queries):
    store = open_written(list("abcde"), clustered(5, 1), name="five")
    for factory in ("Flat", "HNSW8", "SQ8", "Binary"):
        build_index(store, factory, tmp_path / factory)
        rows, scores = open_index(tmp_path / factory, store).search(queries, 1000)
        right_rows, right_scores = exact(queries, store, 1000)
        assert np.array_equal(np.stack(rows), right_rows) and np.array_equal(np.stack(scores), right_scores)


def test_bad_queries_and_depths_are_refused_as_exact_search_refuses_them(saved):
    index = saved("Flat")
    good, bad = np.ones((3, DIM), np.float32), np.ones((3, DIM), np.float32)
    bad[2, 1] = np.nan
    for queries, depth, options, what in [
        (good, 0, {}, "--depth 0"),
        (good, -1, {}, "--depth -1"),
        (bad, 5, {}, "query 2 .*NaN"),
        (good[:, :5], 5, {}, f"do not fit passages of {DIM} dimensions"),
        (good, 5, {"rescore": -1}, "--rescore -1"),
        (good, 5, {"parameters": {"nprobe": 2}}, "Flat takes no parameter nprobe for search"),
    ]:
        with pytest.raises(UserError, match=what):
            index.search(queries, depth, **options)


def test_parameters_that_do_not_fit_are_answered_with_those_that_do(queries, saved):
    index = saved("PCAR16,IVF16_HNSW8,SQ8,RFlat")
    assert list(index.parameters) == ["k_factor", "nprobe", "max_codes", "quantizer_efSearch"]
    with pytest.raises(UserError) as caught:
        index.search(queries, 5, parameters={"efsearch": 4})
    assert caught.value.hint == "it takes k_factor (1), nprobe (1), max_codes (0), quantizer_efSearch (16)"
    for name, value in [("nprobe", 0), ("nprobe", 1.5), ("nprobe", 2**40), ("k_factor", 0.5), ("nprobe", float("nan"))]:
        with pytest.raises(UserError, match=f"{name}=.* is out of range"):
            index.search(queries, 5, parameters={name: value})
    narrow = recall(index, queries, 10)["recall@10"]
    every = {"nprobe": 16, "k_factor": 1.5, "max_codes": 0, "quantizer_efSearch": 64}
    assert recall(index, queries, 10, parameters=every)["recall@10"] > narrow


def test_scores_too_large_for_the_index(tmp_path, open_written):
    store = open_written(list("abcd"), np.full((4, 3), 1e6, np.float32) * np.arange(1, 5, dtype=np.float32)[:, None])
    build_index(store, "SQfp16", tmp_path / "index")
    index = open_index(tmp_path / "index", store)
    with pytest.raises(UserError, match="cannot hold numbers as large"):
        index.search(np.ones((1, 3)), 2, rescore=0)
    rows, _ = index.search(np.ones((1, 3)), 1)
    assert rows[0].tolist() == [3]


def test_parameters_in_words():
    assert parse_parameters(None) == parse_parameters("") == {}
    values = parse_parameters("nprobe=16, k_factor = 1.5")
    assert values == {"nprobe": 16, "k_factor": 1.5} and isinstance(values["nprobe"], int)
    for text in ("nprobe", "nprobe=", "=3", "nprobe=x", "nprobe=inf", "nprobe=nan", "nprobe=1,nprobe=2"):
        with pytest.raises(UserError, match="as a parameter of an index"):
            parse_parameters(text)


def test_samples_are_seeded_and_hold_no_row_twice():
    rows = sample_rows(1000, 300, 7)
    assert len(set(rows.tolist())) == 300 and (np.diff(rows) > 0).all() and rows.max() < 1000
    assert np.array_equal(rows, sample_rows(1000, 300, 7)) and not np.array_equal(rows, sample_rows(1000, 300, 8))
    assert sample_rows(5, 9, 7).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="a sample of 0"):
        sample_rows(5, 0, 7)
