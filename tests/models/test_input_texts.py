"""Texts as notebooks have them: lists, arrays, columns and generators; what is no text is refused with a remedy."""

import numpy as np
import pytest
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.sizes import Size

TEXTS = ["w1 w2", "w3", "w4 w5 w6"]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return NestedEncoder.from_pretrained(tiny_bert, device="cpu")


class Column:
    """A column of a table, such as a Series of pandas: has no truth value, and is indexed by other numbers."""

    ndim = 1

    def __iter__(self):
        return iter(TEXTS)

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")

    def __getitem__(self, index):
        raise KeyError(index)


class Table:
    columns = ("text",)

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    "texts",
    [
        tuple(TEXTS),
        (text for text in TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, object),
        dict.fromkeys(TEXTS).keys(),
        Column(),
    ],
    ids=["tuple", "generator", "array", "objects", "keys", "column"],
)
def test_every_iterable_of_texts(encoder, texts):
    np.testing.assert_array_equal(encoder.encode(texts, "2:8")["2:8"], encoder.encode(TEXTS, "2:8")["2:8"])


def test_one_text_gives_one_vector(encoder):
    one = encoder.encode("w1 w2", ["2:8", Size(4, 32)])
    several = encoder.encode(["w1 w2"], "2:8,4:32")
    assert {str(size): vectors.shape for size, vectors in one.items()} == {"2:8": (8,), "4:32": (32,)}
    np.testing.assert_array_equal(one["4:32"], several["4:32"][0])


def test_tensors_and_batches(encoder):
    expected = encoder.encode(TEXTS, "2:8")["2:8"]
    found = encoder.encode(TEXTS, "2:8", convert_to_tensor=True, batch_size=1)["2:8"]
    assert isinstance(found, torch.Tensor) and found.device == encoder.device
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert encoder.encode([], "2:8", convert_to_tensor=True)["2:8"].shape == (0, 8)


def test_progress_is_shown_where_it_is_wanted(encoder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    encoder.encode(TEXTS, "2:8")
    assert not capsys.readouterr().err
    encoder.encode(TEXTS, "2:8", show_progress_bar=True)
    assert "texts: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (None, "encode takes texts, not nothing", "list of strings"),
        (5, "not something of type int", "list of strings"),
        ({"d1": "w1"}, "not something of type dict", "list(texts.values())"),
        (Table(), "not something of type Table", "name the column"),
        (np.array([TEXTS]), "not something of type ndarray", "one flat list"),
        (np.array("w1"), "an array without dimensions", "one flat list"),
        (["w1", None], r"text 1 \(from 0\) is None, not a string", "leave it out"),
        (["w1", float("nan")], r"text 1 \(from 0\) is nan, not a string", "leave it out"),
        (["w1", "w2", 7], r"text 2 \(from 0\) is 7, not a string", "str(text)"),
        ([["w1"], ["w2"]], r"text 0 \(from 0\) is of type list", "flat list"),
        ([("a title", "w2")], r"text 0 \(from 0\) is of type tuple", "join"),
        ([b"w1"], r"text 0 \(from 0\) is of type bytes", "decode"),
        (["w1", "\ud800"], r"text 1 \(from 0\) is not valid Unicode", "replace"),
    ],
)
def test_what_is_no_text_is_named_with_its_position(encoder, texts, message, hint):
    with pytest.raises(UserError, match=message) as refused:
        encoder.encode(texts, "2:8")
    assert hint in refused.value.hint


def test_a_fit_names_it_too(encoder):
    for texts, message in (
        (["w1", None], "text 1"),
        (Table(), "fit takes texts, not something"),
        (None, "not nothing"),
    ):
        with pytest.raises(UserError, match=message):
            encoder.fit(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 32}, "32 is no list of sizes"),
        ({"sizes": (2, 8)}, "2 is not one size"),
        ({"sizes": b"2:8"}, "is no list of sizes"),
        ({"max_length": "x"}, "max_length is 'x'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"dtype": "bf16"}, "dtype is 'bf16', not a type of torch"),
    ],
)
def test_options_of_a_wrong_type(encoder, options, message):
    with pytest.raises(UserError, match=message):
        encoder.encode(TEXTS, **options)


def test_a_model_of_a_wrong_type(encoder, tiny_bert):
    with pytest.raises(UserError, match="not something of type NestedEncoder"):
        NestedEncoder.from_pretrained(encoder)
    with pytest.raises(UserError, match="no layer '2'"):
        NestedEncoder.from_pretrained(tiny_bert, layers="2")


def test_an_encoder_shows_its_size(encoder, tiny_bert):
    assert repr(encoder) == f"NestedEncoder({str(tiny_bert)!r}, 4 layers of 32, sizes 4:32, cls pooling, cpu)"
