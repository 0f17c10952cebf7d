import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.search import scores as scores_module
from starbucks_retrieval.search.engines import plan_memory
from starbucks_retrieval.search.scores import double_error, inner_products, score_rows, single_error


@pytest.mark.parametrize("dim", [1, 2, 3, 31, 128, 769])
def test_errors_bound_what_libraries_do(dim):
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((500, dim)).astype(np.float32)
    queries = rng.standard_normal((20, dim)).astype(np.float32)
    exact = queries.astype(np.longdouble) @ vectors.astype(np.longdouble).T
    largest = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    off = np.abs((queries @ vectors.T).astype(np.longdouble) - exact).max(axis=1)
    assert (off <= single_error(queries, largest)).all()
    off = np.abs((queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.longdouble) - exact).max(axis=1)
    assert (off <= double_error(queries, largest)).all()


def test_scores_do_not_depend_on_other_rows():
    """One score for a pair of vectors, alone or among others, however the library sums, doubtful or not."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((400, 37)).astype(np.float32).astype(np.float64)
    query = rng.standard_normal((1, 37)).astype(np.float32)
    error = double_error(query, float(np.linalg.norm(vectors, axis=1).max()))[0]
    together = inner_products(vectors, query[0].astype(np.float64), error)
    alone = [inner_products(row[None], query[0].astype(np.float64), error)[0] for row in vectors]
    all_doubtful = inner_products(vectors, query[0].astype(np.float64), 1e6)
    assert together.tolist() == alone == all_doubtful.tolist()


def test_float16_gives_the_bits_of_float32_and_damage_is_told():
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((300, 40)).astype(np.float16)
    queries = rng.standard_normal((2, 40)).astype(np.float32).astype(np.float64)
    rows, errors = np.stack([rng.permutation(300) for _ in queries]), double_error(queries, 20.0)
    half, single = (score_rows(vectors, rows, queries, errors) for vectors in (stored, stored.astype(np.float32)))
    assert half.tobytes() == single.tobytes()
    for number in (np.inf, np.nan):
        stored[rows[1, 7], 3] = number
        with pytest.raises(UserError, match="damaged"):
            score_rows(stored, rows, queries, errors)


def test_a_sum_between_two_floats_is_summed_in_a_fixed_order():
    """1 + 2^-24 lies half-way between two float32: a hair of rounding decides, so it must not be the library's."""
    tiny = 2.0**-60
    vectors = np.array([[1.0, 2.0**-24, tiny, -tiny], [1.0, 2.0**-24, -tiny, tiny]])
    scores = inner_products(vectors, np.ones(4), 1e-15)
    assert scores[0] == scores[1] == np.float32(1)


def test_rounding_is_checked_to_twice_the_error(monkeypatch):
    """Our order and the library's may each be off by the error, in opposite directions."""
    monkeypatch.setattr(scores_module, "_fixed_order", lambda vectors, query: np.full(len(vectors), 42))
    edge, error = 1 + 2.0**-24, 1e-12
    sums = edge + np.array([-2.1, -1.9, -0.1, 0.0, 0.1, 1.9, 2.1]) * error
    assert inner_products(sums[:, None], np.ones(1), error).tolist() == [1, 42, 42, 42, 42, 42, 1 + 2.0**-23]


def test_no_negative_zero():
    for error in (0.0, 1e-9):
        scores = inner_products(np.array([[-0.0], [0.0]]), np.array([1.0]), error)
        assert scores.tolist() == [0, 0] and not np.signbit(scores).any()


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GB", 4 * 10**9), ("512MiB", 512 * 2**20), ("1.5g", 15 * 10**8), ("1000", 1000), (7, 7), (" 2 kb ", 2000)],
)
def test_amounts_of_memory(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "4XB", "4 GB RAM", "1e9", "4I"])
def test_invalid_amounts_of_memory(text):
    with pytest.raises(UserError, match="amount of memory"):
        parse_bytes(text)


def test_memory_plans_respect_the_limit():
    for memory in (1, 10**6, 10**9, 10**12):
        plan = plan_memory(memory, -1, 1000, 8_841_823, 768)
        assert min(plan.batch, plan.block, plan.gathered, plan.rescanned) >= 1
        assert plan.candidates > 1000
        assert plan.block * 768 * 4 <= max(memory, 256 * 768 * 4)
    assert plan_memory(10**9, 64, 1000, 10**6, 768).batch == 64
    assert plan_memory(10**9, -1, 1000, 50, 768).candidates == 50
