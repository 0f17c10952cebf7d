"""Model folders with impossible numbers or damaged files are refused in two lines."""

from __future__ import annotations

import json
import shutil

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.info import model_info


@pytest.fixture
def model(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "m")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, expected an integer from 1 to 1,024"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0, expected"),
        ({"num_attention_heads": 0}, "."),
        ({"hidden_size": 2**40}, "."),
        ({"vocab_size": -1}, "."),
        ({"hidden_dropout_prob": float("inf")}, "."),
    ],
)
def test_impossible_numbers_in_config_json(model, values, what):
    change(model / "config.json", **values)
    with pytest.raises(UserError, match=what):
        model_info(str(model)).parameters(1)
    with pytest.raises(UserError, match=what):
        NestedEncoder.from_pretrained(model, device="cpu")


@pytest.mark.parametrize("token", [99, 100, 2**31, 2**32])
def test_tokens_that_the_model_has_no_vector_for(model, token):
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["w7"] = token
    path.write_text(json.dumps(content))

    def encode(text):
        return NestedEncoder.from_pretrained(model, device="cpu").encode([text])

    if token == 99:
        assert encode("w7")
        return
    with pytest.raises(UserError, match=r"tokenizer gives token|cannot load"):
        encode("w7")
    if token < 2**32:  # a token that no text has does no harm
        assert encode("w8")


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_truncated_weights(model, length):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UserError, match=r"cannot load|is not a model folder|no safetensors"):
        NestedEncoder.from_pretrained(model, device="cpu")


@pytest.mark.parametrize("length", [float("inf"), 0, -5, "x", True])
def test_the_limit_of_a_tokenizer(model, length):
    change(model / "tokenizer_config.json", model_max_length=length)
    if length == float("inf"):
        assert NestedEncoder.from_pretrained(model, device="cpu").token_limit == 64
        return
    with pytest.raises(UserError):
        _ = NestedEncoder.from_pretrained(model, device="cpu").token_limit
