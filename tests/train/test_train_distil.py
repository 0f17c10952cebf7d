"""train --objective distil: texts without labels, from plain flags to a model folder."""

import json

import numpy as np
import pytest
import torch
from conftest import slow_except
from safetensors.torch import load_file
from train.resuming import assert_resumes_to_the_same_bits

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.models import EncoderConfig, unpadded
from starbucks_retrieval.models.projections import FILE
from starbucks_retrieval.train import TrainArguments
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.options import build_options

STEPS = "--max_steps 2 --save_strategy no --sizes 0:8,2:16,4:32"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_bert):
    """Distils the tiny model in a folder of its own, and returns the folder."""
    folder = tmp_path_factory.mktemp("distil")
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(f"w{i}" for i in rng.integers(0, 95, count))

    (folder / "texts.txt").write_text("".join(f"{words(12)}\n" for _ in range(60)))
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": words(4)}) + "\n" for i in range(20))
    )
    common = (
        f"--dataset_path {folder}/texts.txt --query_path {folder}/queries.jsonl --objective distil --use_cpu "
        "--per_device_train_batch_size 8 --learning_rate 1e-3 --warmup_steps 0 --logging_steps 1 --overwrite_output_dir "
        "--dropout 0 --pooling mean --normalize true --temperature 0.05"
    )

    def train(name, flags, model=tiny_bert, code=0):
        argv = f"--model_name_or_path {model} --output_dir {folder / name} {common} {flags}".split()
        assert run_command(main, argv) == code
        return folder / name

    return train


@pytest.fixture(scope="module")
def distilled(run):
    return run("distilled", STEPS)


def history(output):
    return [entry for entry in json.loads((output / "training.json").read_text())["history"] if "loss" in entry]


def test_it_fits_maps_first_and_trains_every_size(distilled):
    assert json.loads((distilled / "starbucks.json").read_text())["projected_layers"] == [0, 2, 4]
    names = {name for name in history(distilled)[0] if "/" in name}
    assert names == {"cosine/0:8", "cosine/2:16", "cosine/4:32", "kl/0:8", "kl/2:16"}
    assert history(distilled)[0]["cosine/4:32"] == pytest.approx(0, abs=1e-5)  # begins as the frozen one
    start, end = load_file(distilled / "_start" / FILE), load_file(distilled / FILE)
    assert all(not torch.equal(start[name], end[name]) for name in start)
    card = (distilled / "README.md").read_text()
    assert "distillation of its full size without labels" in card and "training texts: 80" in card
    NestedEncoder.from_pretrained(distilled, device="cpu").encode(["w1"])


@pytest.mark.slow
def test_the_loss_falls(run):
    output = run("longer", "--max_steps 20 --save_strategy no --sizes 0:8,2:16,4:32 --learning_rate 3e-3")
    losses = [entry["loss"] for entry in history(output)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


@pytest.mark.parametrize("flags", slow_except(["--grad_cache"], ["--grad_cache", "--gradient_checkpointing true"]))
def test_cache_and_checkpointing_change_nothing(distilled, run, flags, monkeypatch):
    if "checkpointing" in flags:  # computes padding; compared with a padded run, since Adam enlarges rounding
        monkeypatch.setattr(unpadded, "is_supported", lambda backbone: False)
        distilled = run("padded", STEPS)
    other = run("other", f"{STEPS} {flags}")
    for one, two in zip(history(distilled), history(other)):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(run):
    assert_resumes_to_the_same_bits(run, "--sizes 0:8,2:16,4:32 --objective_options asymmetric_weight=1")


def test_max_texts_takes_an_equal_number_of_each_kind(run, distilled):
    output = run("few", f"{STEPS} --max_texts 36", model=distilled)
    assert "training texts: 36" in (output / "README.md").read_text()


def test_a_dry_run_counts_texts_and_steps(run, capfd):
    output = run("dry", "--num_train_epochs 2 --sizes 0:8,2:16,4:32 --dry_run")
    printed = capfd.readouterr().out
    assert "about 80 texts" in printed and "20 of 8 texts each" in printed and not output.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--train_group_size 2", "--objective distil has no groups of passages"),
        ("--contrastive_weight 1", "--contrastive_weight is not an option of --objective distil"),
        ("--query_negatives true", "--query_negatives is not an option of --objective distil"),
        ("--sampling uniform", "sampling of data sets belong to training with labels"),
        ("--task sts", "--objective distil has no --task sts"),
        ("--max_texts 0", "--max_texts 0 is below 1"),
        ("--objective srl", "--query_path belongs to training without labels"),
        ("--sizes 4:32", "nothing to learn"),
        ("--query_path none.jsonl", "none.jsonl"),
    ],
)
def test_bad_flags_are_refused(run, capfd, flags, message):
    run("bad", f"--max_steps 1 {flags}", code=2)
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_texts_are_cut_in_training_only(run, distilled):
    stored = json.loads((distilled / "starbucks.json").read_text())
    assert stored["passage_max_len"] is stored["query_max_len"] is None
    short = run("short", f"{STEPS} --passage_max_len 5")
    assert json.loads((short / "starbucks.json").read_text()) == stored
    assert history(short)[0]["loss"] != history(distilled)[0]["loss"]


def test_the_anchor_weight_is_that_of_the_full_size():
    arguments = TrainArguments("m", dataset_path=["d"], objective="distil", anchor_weight=3.0)
    options = build_options(arguments, EncoderConfig(normalize=True, temperature=0.1), 4, False)
    assert (arguments.model_name_or_path, arguments.query_path) == ("m", None)
    assert (options.full_weight, options.normalize, options.temperature) == (3.0, True, 0.1)


@pytest.mark.slow
def test_sizes_without_the_full_one_learn_from_it(run):
    output = run("small", "--max_steps 1 --save_strategy no --sizes 0:8,2:16")
    assert json.loads((output / "starbucks.json").read_text())["projected_layers"] == [0, 2]
    assert {name for name in history(output)[0] if "/" in name} == {"cosine/0:8", "cosine/2:16", "kl/0:8", "kl/2:16"}
