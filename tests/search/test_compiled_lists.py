"""Lists of rows that compiled loops find, score and rank hold what a sort of all scores gives."""

import numpy as np
import pytest
import torch

from starbucks_retrieval.search.engines.rounding import ErrorBound, bf16_bound, largest_bf16_move
from starbucks_retrieval.search.engines.scored_rows import ScoredRows, ranked_lists
from starbucks_retrieval.search.ranking import best, by_docid
from starbucks_retrieval.search.scores import double_error, inner_products, single_error
from starbucks_retrieval.search.stores import array_spec
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import MemoryStore


# Products in float32 are of vectors that have been converted.
@pytest.mark.parametrize(("coarse", "stored"), [(True, np.float16), (True, np.float32), (False, np.float32)])
@pytest.mark.parametrize("queries", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("error", [1e-14, 1e6])  # with the latter, no sum in any order is sure enough
def test_rows_above_the_floor_are_appended_with_exact_scores(compiled, queries, coarse, stored, error):
    rng = np.random.default_rng(queries)
    vectors, lines = rng.standard_normal((70, 9)).astype(stored), rng.standard_normal((queries, 9)).astype(np.float32)
    vectors[5] = 0  # without negative zeros
    scores = torch.from_numpy(rng.integers(-9, 9, (70, queries)).astype(np.float32))  # the loop takes them as they are
    floors = rng.choice([5, -2, 8, 20, -np.inf], queries).astype(np.float32)
    sums, rows = np.full((queries, 75), -7.0, np.float32), np.full((queries, 75), -7)
    before = rng.integers(0, 5, queries)
    filled, errors = before.copy(), np.full(queries, error)
    compared = scores.numpy(), floors
    if coarse:
        bits = scores.bfloat16().view(torch.int16).numpy().view(np.uint16)
        compared = bits, compiled.bfloat16_floors(floors)
    assert compiled.append_scored(*compared, 1000, vectors, lines, errors, sums, rows, filled) == 70
    for query in range(queries):
        above = np.flatnonzero(scores[:, query].numpy() > floors[query])
        low, high = before[query], filled[query]
        assert high == low + len(above)
        assert rows[query, low:high].tolist() == (1000 + above).tolist()
        exact = inner_products(vectors[above], lines[query].astype(np.float64), errors[query])
        assert sums[query, low:high].tobytes() == exact.tobytes()
        assert (sums[query, high:] == -7).all() and (sums[query, :low] == -7).all()


def test_appending_ends_when_a_list_is_full(compiled):
    vectors, queries, errors = np.eye(6, dtype=np.float32), np.ones((2, 6), np.float32), np.zeros(2)
    scores = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [1, 1], [1, 1]], np.float32)
    lists = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64), np.zeros(2, np.int64)
    floors, (_, rows, filled) = np.full(2, 0.5, np.float32), lists
    assert compiled.append_scored(scores, floors, 0, vectors, queries, errors, *lists) == 4
    assert rows[0].tolist() == [0, 1, 3] and rows[1, : filled[1]].tolist() == [1]
    filled[0] = 0
    assert compiled.append_scored(scores[4:], floors, 4, vectors[4:], queries, errors, *lists) == 2
    assert rows[0, : filled[0]].tolist() == [4, 5] and rows[1].tolist() == [1, 4, 5]


def test_bfloat16_is_compared_as_float32_is(compiled):
    bits = np.arange(2**16, dtype=np.uint32) << 16
    scores = bits.view(np.float32)
    scores = scores[np.isfinite(scores) & (scores != 0)]
    near = np.concatenate([np.nextafter(scores[::97], np.float32(way)) for way in (-np.inf, np.inf)])
    floors = np.concatenate([near, scores[::97], np.array([0, -np.inf, 3.3e38, -3.3e38], np.float32)])
    held = scores.view(np.int32) >> 16
    ordered = held ^ (held >> 15 & 0x7FFF)
    for floor, compared in zip(floors, compiled.bfloat16_floors(floors)):
        assert np.array_equal(scores > floor, ordered > compared)


def test_lists_are_joined_and_ranked(compiled):
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 40, (2, 20))
    lengths[:, :3] = [[0, 7, 0], [0, 0, 9]]
    choices = np.array([0, 1, -1, 0.5, -0.25, 1e-40, -1e-40, 3e38, -3e38, 1 + 2.0**-23], np.float32)
    parts = [(rng.choice(choices, (20, 50)), rng.integers(0, 2**40, (20, 50)), filled) for filled in lengths]
    joined = np.empty((20, 90), np.float32), np.empty((20, 90), np.int64), np.zeros(20, np.int64)
    for part in parts:
        compiled.append_lists(*part, *joined)
    best_scores, best_rows, found = np.empty((20, 90), np.float32), np.empty((20, 90), np.int64), np.empty(20, np.int64)
    for depth in (1, 10, 90):
        compiled.rank_lists(*joined, depth, best_scores, best_rows, found)
        for query, length in enumerate(found):
            scores, rows = (np.concatenate([part[i][query, : part[2][query]] for part in parts]) for i in (0, 1))
            ranked = -np.sort(-scores)
            count = int((scores >= ranked[depth - 1]).sum()) if len(scores) >= depth else len(scores)
            assert best_scores[query, :length].tolist() == ranked[:count].tolist()
            pairs = set(zip(scores.tolist(), rows.tolist()))
            assert set(zip(best_scores[query, :length].tolist(), best_rows[query, :length].tolist())) <= pairs
            assert len(set(best_rows[query, :length].tolist())) == length


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
    rows, scores = ranked_lists(parts, 2)
    assert rows.shape == (5, 10) and scores.astype(np.float64) == pytest.approx(ranked[:, :10])
    assert (np.take_along_axis(exact, rows, 1).astype(np.float32) == scores).all()  # no scores are nearly equal
    outside = np.max([part.highest_outside() for part in parts], axis=0)
    assert (outside < scores[:, -1]).all()


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
    rows, _ = ranked_lists([part], 1)
    assert rows.tolist() == np.argsort(-exact, axis=1)[:, :10].tolist()
    assert (part.highest_outside() < np.sort(exact, axis=1)[:, -10]).all()
    assert part.lists.filled.max() < part.lists.scores.shape[1]


def test_short_lists_are_filled_up_and_leave_the_result_open(compiled):
    vectors, queries = np.eye(4, dtype=np.float32), np.array([[0.5, 0.25, 0, 0], [1, 2, 3, 4]], np.float32)
    bound, errors = ErrorBound(0.0, single_error(queries, 1.0)), double_error(queries, 1.0)
    near, floors = torch.from_numpy(queries), np.array([-np.inf, 3.5], np.float32)
    part = ScoredRows(queries, near, floors, bound, errors, 4, 6, 64, compiled)
    part.add(20, vectors)
    outside = part.highest_outside()
    assert outside[0] < 0 and 3.5 <= outside[1] < 3.51
    rows, scores = ranked_lists([part], 1)
    assert scores[0].tolist() == [0.5, 0.25, 0, 0] and sorted(rows[0].tolist()) == [20, 21, 22, 23]
    assert scores[1].tolist() == [4, -np.inf, -np.inf, -np.inf] and rows[1].tolist() == [23, 0, 0, 0]


@pytest.mark.parametrize("depth", [1, 3, 7, 20])
def test_ties_of_sorted_scores_are_ordered_as_of_any(depth):
    rng = np.random.default_rng(depth)
    scores = -np.sort(-rng.integers(0, 4, (6, 20)), axis=1).astype(np.float32)
    rows = np.stack([rng.permutation(40)[:20] for _ in scores])
    store = MemoryStore(
        array_spec(40, Size(1, 1)), [f"d{n}" for n in rng.permutation(40)], np.zeros((40, 1), np.float32)
    )
    expected = best(rows, scores, depth, store)
    assert [part.tolist() for part in by_docid(rows, scores, depth, store)] == [part.tolist() for part in expected]
