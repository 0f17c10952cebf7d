from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starbucks_retrieval import Size, Sizes, UserError
from starbucks_retrieval.sizes import as_size, as_sizes

PAPER = "2:32,4:64,6:128,8:256,10:512,12:768"


def test_the_default_sizes_of_bert_base_are_the_papers():
    assert str(Sizes.default(12, 768)) == PAPER


def test_the_default_sizes_of_minilm():
    assert str(Sizes.default(6, 384)) == "1:16,2:32,3:64,4:128,5:256,6:384"


@given(st.integers(1, 80), st.integers(1, 8192))
def test_default_sizes_are_valid_and_end_at_the_full_size(layers, width):
    model_sizes = Sizes.default(layers, width)
    assert model_sizes[-1] == model_sizes.full == Size(layers, width)
    assert len(model_sizes) <= min(6, layers)
    model_sizes.check(layers, width)


@given(st.sets(st.tuples(st.integers(1, 50), st.integers(1, 2000)), min_size=1, max_size=9))
def test_text_form_round_trips(pairs):
    sizes = Sizes([Size(*pair) for pair in sorted(pairs)])
    assert Sizes.parse(str(sizes)) == sizes


def test_size_aliases_and_all_refer_to_the_model_sizes():
    model_sizes = Sizes.parse(PAPER)
    assert str(Sizes.parse("demi,Trenta", model_sizes)) == "2:32,12:768"
    assert Sizes.parse("all", model_sizes) is model_sizes
    assert str(Sizes.parse("short, 6:128", model_sizes)) == "4:64,6:128"


def test_deeper_sizes_may_have_fewer_dims():
    sizes = Sizes.parse("2:768,6:32,6:64,12:32")
    assert sizes.full == Size(12, 768)
    assert sizes.layers == (2, 6, 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sizes"),
        ("6", "cannot read"),
        ("6:x", "cannot read"),
        ("6:128:3", "cannot read"),
        ("2:0", "dims at 1"),
        ("2:-4", "dims at 1"),
        ("4:64,2:32", "out of order"),
        ("2:32,2:32", "repeated"),
        ("all", "stores its sizes"),
        ("demi", "stores its sizes"),
    ],
)
def test_bad_texts_are_refused_with_a_remedy(text, message):
    with pytest.raises(UserError, match=message) as caught:
        Sizes.parse(text)
    assert caught.value.hint


def test_size_aliases_need_six_sizes():
    with pytest.raises(UserError, match="needs a model with 6 sizes"):
        Sizes.parse("demi", Sizes.parse("1:2,2:4"))


def test_sizes_beyond_the_backbone_are_refused():
    with pytest.raises(UserError, match="layer 13, but the model has 12"):
        Sizes.parse("13:64").check(12, 768)
    with pytest.raises(UserError, match="769 dimensions"):
        Sizes.parse("12:769").check(12, 768)


def test_sizes_are_given_as_text_or_as_numbers_of_numpy():
    assert Sizes("2:32, 4:64") == Sizes(["2:32", Size(4, 64)]) == eval(repr(Sizes("2:32,4:64")))  # noqa: S307
    size = Size(np.int64(2), np.int32(32))
    assert type(size.layer) is type(size.dim) is int and size == as_size("2:32") == as_size(size)
    assert as_sizes(["tall", "2:32"], Sizes.default(12, 768)) == Sizes("2:32,6:128")


@pytest.mark.parametrize(
    "make", [lambda: Size("2", 32), lambda: Size(2.0, 32), lambda: Size(2, None), lambda: as_size(5)]
)
def test_a_size_of_a_wrong_type_is_refused(make):
    with pytest.raises(UserError, match=r"is not (a|one) size") as refused:
        make()
    assert "6:128" in refused.value.hint
