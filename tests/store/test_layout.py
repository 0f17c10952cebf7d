import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store.dtypes import check_finite, to_float32


def test_every_finite_half_as_a_single():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    expected = halves.astype(np.float32)
    assert to_float32(halves).tobytes() == expected.tobytes()  # the sign of zero included
    table = np.resize(halves, (300, 1000))
    assert to_float32(table).tobytes() == table.astype(np.float32).tobytes()
    assert to_float32(table[:, ::3]).tobytes() == table[:, ::3].astype(np.float32).tobytes()
    out = np.full(table.shape, np.nan, np.float32)
    assert to_float32(table, out) is out
    assert out.tobytes() == table.astype(np.float32).tobytes()


def test_long_singles_are_finite():
    table = np.full((3, 1000), np.finfo(np.float32).max, np.float32)  # whose sum is not
    assert to_float32(table) is table


def test_singles_stay_what_they_are():
    table = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert to_float32(table) is table
    out = np.empty_like(table)
    assert np.array_equal(to_float32(table, out), table)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_halves_that_are_no_numbers_do_not_become_some(wrong):
    table = np.full((300, 1000), 65504, np.float16)  # the largest
    table[::2] *= -1
    assert np.array_equal(to_float32(table), table.astype(np.float32))
    table[299, 999] = wrong
    with pytest.raises(UserError, match="a stored vector has NaN or infinity"):
        to_float32(table)
    with pytest.raises(UserError, match="a stored vector has NaN or infinity"):
        check_finite(table)
    check_finite(table[:299])
    single = table.astype(np.float32)
    for out in (None, np.empty_like(single)):
        with pytest.raises(UserError, match="a stored vector has NaN or infinity"):
            to_float32(single, out)
