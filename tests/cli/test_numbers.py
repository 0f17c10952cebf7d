"""Numbers as people read them."""

import pytest

from starbucks_retrieval.cli.numbers import plain


@pytest.mark.parametrize(
    ("value", "digits", "told"),
    [
        (240.3, 2, "240"),
        (2.43, 2, "2.4"),
        (99.6, 2, "100"),
        (0.00123, 2, "0.0012"),
        (12345.678, 4, "12346"),
        (1e-05, 4, "1e-05"),
        (6980000, 6, "6980000"),
        (-1234567.0, 6, "-1234567"),
        (0, 4, "0"),
        (float("inf"), 4, "inf"),
        (float("nan"), 4, "nan"),
    ],
)
def test_a_large_number_has_no_exponent(value, digits, told):
    assert plain(value, digits) == told
