"""Cosines that accumulate over dims, and the correlation over them."""

import math

import numpy as np
import pytest

from starbucks_retrieval.sts import correlation, nested_cosines


@pytest.mark.parametrize("length", [1.0, 50.0])
def test_every_dim_equals_a_cosine_taken_by_itself(length):
    rng = np.random.default_rng(0)
    vectors = (length * rng.normal(size=(40, 24))).astype(np.float32)
    first, second = rng.integers(0, 40, 5000), rng.integers(0, 40, 5000)  # more pairs than a chunk
    dims = [1, 2, 8, 17, 24]
    found = dict(nested_cosines(vectors, first, second, dims))
    assert list(found) == dims
    for dim, cosines in found.items():
        cut = vectors[:, :dim].astype(np.float64)
        cut /= np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(cosines, (cut[first] * cut[second]).sum(axis=1), atol=1e-12)


def test_equal_sentences_and_one_dimension_leave_no_rounding_to_rank_by():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(200, 7)).astype(np.float32)
    same = np.arange(200)
    [(_, cosines)] = nested_cosines(vectors, same, same, [7])
    assert set(cosines) == {1.0}
    [(_, signs)] = nested_cosines(vectors, same, same[::-1].copy(), [1])
    assert set(signs) == {-1.0, 1.0}


def test_a_vector_of_zeros_is_like_nothing():
    vectors = np.array([[0, 0, 1], [1, 0, 0]], dtype=np.float32)
    found = dict(nested_cosines(vectors, np.array([0]), np.array([1]), [2, 3]))
    assert found[2].tolist() == [0.0] and found[3].tolist() == [0.0]


def test_ties_share_their_average_rank():
    # ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: Pearson's formula on these by hand
    assert correlation(np.array([0.1, 0.5, 0.5, 0.9]), np.array([0, 2, 1, 5]), "spearman") == pytest.approx(
        4.5 / math.sqrt(4.5 * 5)
    )
    assert correlation(np.array([1.0, 2, 4]), np.array([1, 2, 4]), "pearson") == pytest.approx(1)
    assert correlation(np.array([1.0, 2, 40]), np.array([1, 2, 4]), "pearson") < 0.99


def test_no_correlation_with_a_constant():
    assert math.isnan(correlation(np.ones(3), np.arange(3), "spearman"))
