"""Dictionaries by size: what a notebook types, and what it reads."""

import copy
import pickle

import numpy as np
import pytest
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.by_size import BySize, Embeddings
from starbucks_retrieval.models.fit_report import FitReport, Quality
from starbucks_retrieval.sizes import Size, Sizes

SIZES = Sizes("1:2,1:4,2:4,2:8,3:8,4:16")


@pytest.fixture
def found():
    return BySize({Size(1, 2): "a", Size(4, 16): "b"}, SIZES)


def test_a_size_may_be_text_or_an_alias(found):
    assert found["1:2"] == found[Size(1, 2)] == found[" 1:2 "] == found["demi"] == "a"
    assert found.get("trenta") == "b" and found.get("2:4") is None and found.get("what", 3) == 3
    assert "4:16" in found and Size(4, 16) in found and "2:4" not in found and 5 not in found and "tall" not in found
    assert found == {Size(1, 2): "a", Size(4, 16): "b"} and list(found) == [Size(1, 2), Size(4, 16)]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])  # noqa: S301
def test_a_copy_is_the_same(found, again):
    assert again(found) == found and again(found)["demi"] == "a"


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("2:4", "there is no size 2:4", "there is 1:2, 4:16"),
        (Size(9, 9), "there is no size 9:9", "there is 1:2, 4:16"),
        (0, "0 is not one size", 'take one of "1:2", "4:16"'),
        ("small", "cannot read the size 'small'", 'take one of "1:2"'),
    ],
)
def test_a_size_that_is_not_there(found, key, message, hint):
    with pytest.raises(UserError, match=message) as refused:
        found[key]
    assert hint in refused.value.hint
    assert isinstance(refused.value, KeyError)  # what a dictionary raises


def test_embeddings_show_their_number_and_sizes():
    vectors = Embeddings({Size(1, 2): np.zeros((3, 2), "f4"), Size(4, 16): np.zeros((3, 16), "f4")})
    assert repr(vectors) == "Embeddings(3 texts at 1:2, 4:16; float32)"
    assert repr(Embeddings({Size(1, 2): torch.zeros(2)})) == "Embeddings(1 text at 1:2; torch.float32 on cpu)"


def test_the_report_of_a_fit():
    quality = {Size(0, 16): Quality(0.5, 0.5), Size(2, 16): Quality(1.0, 1.0)}
    report = FitReport(100, 20, {2: 0.1}, quality, quality)
    assert report.after["2:16"].top10 == report.before["2:16"].cosine == 1.0
    assert repr(report) == "FitReport(100 texts, 20 held out; layers [0, 2], 2 sizes)"


@pytest.mark.parametrize("sizes", ["2:32,4:64", ["2:32", Size(4, 64)], Sizes("2:32,4:64")])
def test_the_sizes_of_a_configuration_may_be_text(sizes):
    assert EncoderConfig(sizes=sizes).sizes == Sizes("2:32,4:64")
