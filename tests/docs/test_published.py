"""What docs/howto/from-starbucks.md says of the published checkpoints, on samples of their layout."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from docs.pages import blocks
from docs.runner import samples, working_dir  # noqa: F401
from docs.samples import Samples

from starbucks_retrieval import NestedEncoder, UserError

SMAE = "bert-base-uncased-fineweb100bt-smae"


@pytest.fixture
def convert(samples: Samples, working_dir):  # noqa: F811
    """The page's conversion, in a folder with the pickled checkpoint."""
    samples.copy_to(SMAE, working_dir)
    (block,) = [
        block for block in blocks("docs/howto/from-starbucks.md") if SMAE in block.text and block.language == "python"
    ]
    return lambda: exec(compile(block.text, block.page, "exec"), {})  # noqa: S102


def test_the_converted_pickle_has_the_weights_of_the_published_one(convert, working_dir):  # noqa: F811
    with pytest.raises(UserError, match="no safetensors weights") as refused:
        NestedEncoder.from_pretrained(SMAE)
    assert "from-starbucks.md" in refused.value.hint
    convert()
    pickled = torch.load(working_dir / SMAE / "pytorch_model.bin", weights_only=True)
    weights = NestedEncoder.from_pretrained("smae", device="cpu").backbone.state_dict()
    assert len(weights) > 90
    for name, weight in weights.items():
        torch.testing.assert_close(weight, pickled[f"bert.{name}"], rtol=0, atol=0)


def test_a_pickle_that_names_a_function_is_refused_unread(convert, working_dir):  # noqa: F811
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(working_dir / "broken-in"),)

    torch.save({"bert.embeddings.word_embeddings.weight": Evil()}, working_dir / SMAE / "pytorch_model.bin")
    with pytest.raises((pickle.UnpicklingError, RuntimeError, OSError)):
        convert()
    assert not (working_dir / "broken-in").exists() and not (working_dir / "smae").exists()


def test_the_pooling_of_each_is_the_one_it_was_trained_with(samples: Samples, working_dir):  # noqa: F811
    for name, pooling in (("Starbucks-msmarco", "cls"), ("Starbucks_STS", "mean")):
        samples.copy_to(name, working_dir)
        assert NestedEncoder.from_pretrained(name, device="cpu").config.pooling == pooling
