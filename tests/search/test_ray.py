from contextlib import closing
from importlib.util import find_spec

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.engines import EngineOptions
from starbucks_retrieval.search.engines.ray import RaySearch, RowRangeView, _shares

# Every test process collects every file: the import would cost each of them seconds.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the package ray")


@pytest.fixture
def corpus():
    """Ids, vectors with twins all over the corpus, and queries that find them."""
    rng = np.random.default_rng(6)
    vectors = rng.standard_normal((900, 12)).astype(np.float32)
    vectors[rng.random(900) < 0.2] = vectors[7]
    queries = rng.standard_normal((11, 12)).astype(np.float32)
    queries[:2] = vectors[7]
    return [f"d{number}" for number in rng.permutation(900)], vectors, queries


def joined(found):
    return [np.concatenate(parts) for parts in zip(*found)]


@pytest.mark.slow
def test_two_workers_find_what_one_search_finds(tmp_path, write_store, open_written, corpus, monkeypatch):
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ids, vectors, queries = corpus
    whole = open_written(ids, vectors, shard_size=64)
    expected = joined(exact_search(queries, whole, 100))
    parts = [
        write_store(tmp_path / f"part-{part}", ids, vectors, parts=3, part=part, shard_size=64) for part in range(3)
    ]
    ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, num_cpus=2, log_to_driver=False)
    try:
        for folders, options in [
            (whole.folders, EngineOptions(ray_workers=2)),
            (parts, EngineOptions("cpu", ray_workers=2, batch_size=4, max_memory=200_000)),  # by torch
        ]:
            with closing(RaySearch(folders, 100, options)) as workers:
                found = joined(workers.search(queries))
            assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]
        with closing(
            RaySearch(whole.folders, 2000, EngineOptions(ray_workers=2))
        ) as workers:  # two searches by the same workers
            for block in (queries[:3], queries[3:]):
                assert [array.shape for array in joined(workers.search(block))] == [(len(block), 900)] * 2
        # What a worker finds wrong arrives as it would from this process.
        with (
            closing(RaySearch(parts, 5, EngineOptions("tpu", ray_workers=2))) as workers,
            pytest.raises(UserError, match="no device tpu") as caught,
        ):
            next(workers.search(queries))
        assert caught.value.hint == "say --device cpu"
    finally:
        ray.shutdown()


def test_rows_of_a_store(open_written, corpus):
    ids, vectors, queries = corpus
    rows = RowRangeView(open_written(ids, vectors, shard_size=64), 100, 612)
    assert rows.ids(np.array([0, 511])) == [ids[100], ids[611]]
    assert rows.consecutive(3, 5)[0] == ids[103:105]
    assert np.array_equal(np.concatenate([block for _, block in rows.blocks(100)]), vectors[100:612])
    with pytest.raises(IndexError):
        rows.vectors(np.array([512]))
    alone = open_written(ids[100:612], vectors[100:612], "alone", shard_size=64)
    for one, other in zip(exact_search(queries, rows, 50), exact_search(queries, alone, 50)):
        assert [array.tobytes() for array in one] == [array.tobytes() for array in other]


@pytest.mark.parametrize("workers", [1, 2, 4, 7, 15, 100])
def test_shares_cover_the_store(open_written, corpus, workers):
    ids, vectors, _ = corpus
    shares = _shares(open_written(ids, vectors, shard_size=64), workers)
    assert len(shares) == min(workers, 15)
    assert [start for start, _ in shares] == [0, *(stop for _, stop in shares[:-1])]
    assert shares[-1][1] == 900
    sizes = [-(-(stop - start) // 64) for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


def test_bad_requests_start_no_ray(open_written, corpus):
    import ray

    ids, vectors, queries = corpus
    folders = open_written(ids, vectors, shard_size=64).folders
    for wrong, options, what in [
        (queries, {"depth": 0}, "--depth 0"),
        (queries[:, :3], {}, "do not fit passages of 12"),
        (queries, {"options": EngineOptions(ray_workers=0)}, "0 Ray workers"),
    ]:
        with pytest.raises(UserError, match=what):
            next(RaySearch(folders, **options).search(wrong))
    with pytest.raises(UserError, match="no store to search"):
        RaySearch([])
    assert not ray.is_initialized()
