"""What docs/howto/from-starbucks.md says of the published checkpoints, on stand-ins of their layout."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from docs.pages import blocks
from docs.runner import here, stand_ins  # noqa: F401
from docs.stand_ins import StandIns

from starbucks_retrieval import NestedEncoder, UserError

SMAE = "bert-base-uncased-fineweb100bt-smae"


@pytest.fixture
def convert(stand_ins: StandIns, here):  # noqa: F811
    """The page's conversion, in a folder with the pickled checkpoint."""
    stand_ins.lend(SMAE, here)
    (block,) = [
        block for block in blocks("docs/howto/from-starbucks.md") if SMAE in block.text and block.language == "python"
    ]
    return lambda: exec(compile(block.text, block.page, "exec"), {})  # noqa: S102


def test_the_converted_pickle_has_the_weights_of_the_published_one(convert, here):  # noqa: F811
    with pytest.raises(UserError, match="no safetensors weights") as refused:
        NestedEncoder.from_pretrained(SMAE)
    assert "from-starbucks.md" in refused.value.hint
    convert()
    pickled = torch.load(here / SMAE / "pytorch_model.bin", weights_only=True)
    weights = NestedEncoder.from_pretrained("smae", device="cpu").backbone.state_dict()
    assert len(weights) > 90
    for name, weight in weights.items():
        torch.testing.assert_close(weight, pickled[f"bert.{name}"], rtol=0, atol=0)


def test_a_pickle_that_names_a_function_is_refused_unread(convert, here):  # noqa: F811
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(here / "broken-in"),)

    torch.save({"bert.embeddings.word_embeddings.weight": Evil()}, here / SMAE / "pytorch_model.bin")
    with pytest.raises((pickle.UnpicklingError, RuntimeError, OSError)):
        convert()
    assert not (here / "broken-in").exists() and not (here / "smae").exists()


def test_the_pooling_of_each_is_the_one_it_was_trained_with(stand_ins: StandIns, here):  # noqa: F811
    for name, pooling in (("Starbucks-msmarco", "cls"), ("Starbucks_STS", "mean")):
        stand_ins.lend(name, here)
        assert NestedEncoder.from_pretrained(name, device="cpu").config.pooling == pooling
