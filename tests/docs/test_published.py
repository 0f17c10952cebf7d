"""What docs/howto/from-starbucks.md says of the published checkpoints, on samples of their layout."""

from __future__ import annotations

import os
import re

import pytest
import torch
from docs.pages import blocks
from docs.runner import PageRun, samples, working_dir  # noqa: F401
from docs.samples import Samples

from starbucks_retrieval import NestedEncoder, UserError
from starbucks_retrieval.__main__ import _main as starbucks
from starbucks_retrieval.cli import run_command

SMAE = "bert-base-uncased-fineweb100bt-smae"
NAMES = ("Starbucks-msmarco", "Starbucks_STS", SMAE)


@pytest.fixture
def convert(samples: Samples, working_dir):  # noqa: F811
    """A function that runs the page's conversion of a checkpoint in the current folder, which is returned."""

    def convert(name):
        text = "\n".join(block.text for block in blocks("docs/howto/from-starbucks.md"))
        lines = re.sub(r"\\\n\s*", " ", text).splitlines()
        commands = [line for line in lines if line.startswith("starbucks convert")]
        assert len(commands) == len(NAMES)
        [command] = [line for line in commands if name in line]
        samples.copy_to(name, working_dir)
        PageRun(working_dir, None).run_command(command, "from-starbucks.md")
        return working_dir

    return convert


def test_the_converted_pickle_has_the_weights_of_the_published_one(convert):
    converted = convert(SMAE)
    with pytest.raises(UserError, match="no safetensors weights") as refused:
        NestedEncoder.from_pretrained(SMAE)
    assert f"starbucks convert --model_name_or_path {SMAE}" in refused.value.hint
    pickled = torch.load(converted / SMAE / "pytorch_model.bin", weights_only=True)
    weights = NestedEncoder.from_pretrained("smae", device="cpu").backbone.state_dict()
    assert len(weights) > 90
    for name, weight in weights.items():
        torch.testing.assert_close(weight, pickled[f"bert.{name}"], rtol=0, atol=0)


@pytest.mark.slow  # of twelve layers of their width; tests/convert has small ones
def test_the_others_store_their_sizes_and_pooling(convert):
    for name, folder, pooling in (("Starbucks-msmarco", "msmarco", "cls"), ("Starbucks_STS", "sts", "mean")):
        convert(name)
        config = NestedEncoder.from_pretrained(folder, device="cpu").config
        assert config.pooling == pooling and str(config.sizes) == "2:32,4:64,6:128,8:256,10:512,12:768"


def test_a_pickle_that_names_a_function_is_refused_unread(samples: Samples, working_dir, capsys):  # noqa: F811
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(working_dir / "broken-in"),)

    samples.copy_to(SMAE, working_dir)
    torch.save({"bert.embeddings.word_embeddings.weight": Evil()}, working_dir / SMAE / "pytorch_model.bin")
    assert run_command(starbucks, ["convert", "--model_name_or_path", SMAE, "--output_dir", "smae"]) == 2
    assert "which no tensor needs" in capsys.readouterr().err
    assert not (working_dir / "broken-in").exists() and not (working_dir / "smae").exists()


@pytest.mark.slow
def test_the_pooling_of_each_is_the_one_it_was_trained_with(samples: Samples, working_dir):  # noqa: F811
    for name, pooling in (("Starbucks-msmarco", "cls"), ("Starbucks_STS", "mean")):
        samples.copy_to(name, working_dir)
        assert NestedEncoder.from_pretrained(name, device="cpu").config.pooling == pooling
