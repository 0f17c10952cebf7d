"""The order of training rows: shares, passes, batches of one data set, and the same order whatever came before."""

import numpy as np
import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.train.data import MixtureSampler
from starbucks_retrieval.train.mixture import Mixture, allocate


@pytest.mark.parametrize("counts", [[10], [7, 5], [3, 3, 100]])
def test_without_weights_an_epoch_is_one_permutation_of_all_rows(counts):
    for epoch in range(3):
        passes, rows = Mixture(counts, [1] * len(counts)).order(4, epoch)
        np.testing.assert_array_equal(rows, np.random.default_rng([4, epoch]).permutation(sum(counts)))
        assert (passes == epoch).all()


def used(mixture, epochs, seed=0):
    """How often each row is used."""
    found = np.zeros(sum(mixture.counts), int)
    for epoch in range(epochs):
        np.add.at(found, mixture.order(seed, epoch)[1], 1)
    return found


@pytest.mark.parametrize(
    ("exponent", "weights", "shares"),
    [(1.0, [1, 1], [0.8, 0.2]), (0.0, [1, 1], [0.5, 0.5]), (0.5, [1, 1], [2 / 3, 1 / 3]), (1.0, [1, 4], [0.5, 0.5])],
)
@pytest.mark.parametrize("batch", [0, 5])
def test_data_sets_have_their_shares_and_rows_are_used_equally_often(exponent, weights, shares, batch):
    mixture = Mixture([80, 20], weights, exponent, batch)
    counts = used(mixture, 12)
    sets = np.split(counts, [80])
    assert [part.sum() / counts.sum() for part in sets] == pytest.approx(shares, abs=0.01)
    assert all(part.max() - part.min() <= 1 for part in sets)
    assert len(mixture) == 100 == len(mixture.order(0, 3)[1])


def test_a_batch_of_one_data_set_has_no_row_twice():
    mixture = Mixture([23, 9], [1, 2], 1.0, 4)
    for epoch in range(10):
        rows = mixture.order(0, epoch)[1].reshape(-1, 4)
        assert all(len(set(row)) == 4 for row in rows.tolist())
        assert (((rows >= 23).sum(axis=1) % 4) == 0).all()
    assert used(mixture, 40).min() > 0  # what one pass leaves out, another one has


def test_a_repeated_row_comes_with_another_pass():
    passes, rows = Mixture([30, 3], [1, 1], 0.0).order(0, 0)
    small = sorted(zip(rows[rows >= 30].tolist(), passes[rows >= 30].tolist()))
    assert len(set(small)) == len(small) > 9


def test_a_rare_data_set_is_used_in_some_epochs():
    drawn = [int(allocate(np.array([0.99, 0.01]), 10, epoch)[1][1]) for epoch in range(100)]
    assert sum(drawn) == 10 and max(drawn) == 1


def test_allocations_stay_within_one_draw_of_the_shares():
    rng = np.random.default_rng(0)
    for _ in range(40):
        shares = rng.random(rng.integers(1, 8)) ** 4
        shares, total = shares / shares.sum(), int(rng.integers(1, 40))
        for epoch in range(10):
            before, now = allocate(shares, total, epoch)
            assert now.sum() == total and (now >= 0).all()
            assert np.abs(before + now - shares * total * (epoch + 1)).max() < 1 + 1e-5


def test_the_order_depends_on_the_seed_and_the_epoch_only():
    mixture, epoch = Mixture([40, 10], [1, 3], 0.5, 5), [0]
    sampler = MixtureSampler(mixture, 1, lambda: epoch[0])
    list(sampler)
    epoch[0] = 3
    assert list(sampler) == list(MixtureSampler(mixture, 1, lambda: 3)) != list(MixtureSampler(mixture, 2, lambda: 3))
    assert len(list(sampler)) == len(sampler)


def test_a_data_set_smaller_than_a_batch_is_refused():
    with pytest.raises(UserError, match="b has 7 rows, fewer than the 8 of a batch from one data set"):
        Mixture([10, 7], [1, 1], 1.0, 8).check(["a", "b"])
