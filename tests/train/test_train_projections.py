"""train --projections: maps that train with the backbone, are saved with it and resumed, with every way of stepping."""

import json

import numpy as np
import pytest
import torch
from conftest import slow_except
from safetensors.torch import load_file
from train.resuming import assert_resumes_to_the_same_bits

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.projections import FILE, Projections
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.trainer import separate_group

STEPS = "--max_steps 2 --save_strategy no --sizes 0:8,2:16,4:32"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_bert):
    """Trains the tiny model in a folder of its own, and returns the folder."""
    folder = tmp_path_factory.mktemp("projections")
    rng = np.random.default_rng(0)
    rows = [" ".join(f"w{i}" for i in rng.integers(0, 95, 8)) for _ in range(40)]
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"query": row[:8], "positive": row, "negative": [rows[0]]}) + "\n" for row in rows)
    )
    common = (
        "--train_group_size 2 --warmup_steps 0 --per_device_train_batch_size 8 --learning_rate 1e-3 "
        "--logging_steps 1 --use_cpu --overwrite_output_dir --dropout 0 --pooling mean --normalize true"
    )

    def train(name, flags, model=tiny_bert, code=0, data=folder / "rows.jsonl"):
        output = folder / name
        argv = f"--model_name_or_path {model} --dataset_path {data} --output_dir {output} {common} {flags}".split()
        assert run_command(main, argv) == code
        return output

    return train


@pytest.fixture(scope="module")
def fitted(run):
    return run("fitted", f"--projections fit {STEPS}")


def losses(output):
    history = json.loads((output / "training.json").read_text())["history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def maps(output):
    return load_file(output / FILE)


def test_fitted_maps_train_with_the_backbone_and_are_saved(fitted, run, tiny_bert):
    assert json.loads((fitted / "starbucks.json").read_text())["projected_layers"] == [0, 2, 4]
    start, end = load_file(fitted / "_start" / FILE), maps(fitted)
    assert start.keys() == end.keys() == {"layer_2.weight", "layer_2.bias", "layer_4.weight", "token_table"}
    assert all(not torch.equal(start[name], end[name]) for name in start)
    assert not end["token_table"][[0, 2, 3]].any()  # special tokens still do not count
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_bert, fitted))
    name = "encoder.layer.1.output.dense.weight"
    assert not torch.equal(before[name], after[name])
    encoder = NestedEncoder.from_pretrained(fitted, device="cpu")  # checks that the maps belong to the weights
    assert sorted(map(str, encoder.encode(["w1 w2"]))) == ["0:8", "2:16", "4:32"]
    assert json.loads((fitted / "training.json").read_text())["configuration"]["train"]["projections"] == "fit"


def test_a_dry_run_tells_of_the_maps(run, capfd):
    run("dry", f"--projections fit {STEPS} --dry_run")
    assert "of the layers 0, 2, 4, fitted on the training texts first" in capfd.readouterr().out


@pytest.mark.slow
def test_a_fit_is_the_same_in_every_run(fitted, run):
    again = run("again", f"--projections fit {STEPS}")
    first, second = maps(fitted), maps(again)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow  # without labels, the cache is tested with maps in the quick suite
@pytest.mark.parametrize(
    "flags", ["--grad_cache --gc_p_chunk_size 3", "--gradient_checkpointing true", "--max_tokens_per_chunk 30"]
)
def test_cache_checkpointing_and_chunks_change_nothing(fitted, run, flags, monkeypatch):
    if "checkpointing" in flags:  # computes padding; compared with a padded run, since Adam enlarges rounding
        monkeypatch.setattr(unpadded, "is_supported", lambda backbone: False)
        fitted = run("padded", f"--projections fit {STEPS}")
    other = run("other", f"--projections fit {STEPS} {flags}")
    np.testing.assert_allclose(losses(other), losses(fitted), rtol=1e-4)
    first, second = maps(fitted), maps(other)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(run):
    assert_resumes_to_the_same_bits(run, "--projections fit --sizes 0:8,2:16,4:32 --anchor_weight 1")


def test_a_model_with_projections_keeps_trains_or_drops_them(fitted, run, capfd):
    kept = run("kept", f"{STEPS.replace('0:8,', '')} --projection_learning_rate 0.01", model=fitted)
    assert "the maps of the layers 0 are dropped: no size of this run uses them" in capfd.readouterr().err
    start, end = maps(fitted), maps(kept)
    assert end.keys() == {"layer_2.weight", "layer_2.bias", "layer_4.weight", "token_table"}  # an input of layer 2
    assert json.loads((kept / "starbucks.json").read_text())["projected_layers"] == [2, 4]
    assert 0.005 < (start["layer_2.weight"] - end["layer_2.weight"]).abs().max() < 0.05  # two steps of Adam
    run("missing", "--max_steps 1 --sizes 1:8,4:32", model=fitted, code=2)
    dropped = run("dropped", "--max_steps 1 --save_strategy no --projections none", model=fitted)
    assert "are dropped: --projections none" in capfd.readouterr().err
    assert not (dropped / FILE).exists()
    assert "projected_layers" not in json.loads((dropped / "starbucks.json").read_text())


def test_random_maps_are_rotations(run):
    output = run("random", f"--projections random {STEPS} --projection_learning_rate 1e-9")
    weight = maps(output)["layer_2.weight"]
    torch.testing.assert_close(weight @ weight.T, torch.eye(32), rtol=0, atol=1e-4)
    torch.testing.assert_close(maps(output)["layer_4.weight"], torch.eye(32), rtol=0, atol=1e-4)


def test_maps_that_a_step_does_not_use_have_a_gradient_of_zero(run):
    output = run("sampled", "--projections fit --objective 2dmse --max_steps 1 --save_strategy no")
    start, end = load_file(output / "_start" / FILE), maps(output)
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert "layer_4.weight" in moved and len(moved & {f"layer_{n}.weight" for n in (1, 2, 3)}) == 1
    assert (
        end.keys()
        == start.keys()
        == {f"layer_{n}.{kind}" for n in (1, 2, 3) for kind in ("weight", "bias")} | {"layer_4.weight", "token_table"}
    )


@pytest.mark.parametrize("sizes", slow_except(["0:8"], ["0:8", "1:8,2:16"]))
def test_shallow_sizes_load_no_layer_above(run, sizes):
    output = run("shallow", f"--projections fit --max_steps 1 --save_strategy no --sizes {sizes}")
    assert NestedEncoder.from_pretrained(output, device="cpu").encode(["w1"]).keys()


def test_lora_trains_the_maps_too_and_resumes(run):
    flags = "--projections fit --lora --lora_r 2 --max_steps 2 --save_steps 1 --sizes 2:16,4:32"
    whole = run("lora", flags)
    start, end = load_file(whole / "_start" / FILE), maps(whole)
    assert not torch.equal(start["layer_2.weight"], end["layer_2.weight"])
    (whole / "checkpoint-2" / "trainer_state.json").unlink()
    run("lora", f"{flags} --resume_from_checkpoint true")
    assert all(torch.equal(end[name], weight) for name, weight in maps(whole).items())


def test_too_few_texts_are_refused(run, tmp_path, capfd):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"query": f"w{i}", "positive": "w1"}) + "\n" for i in range(8)))
    run("few", f"--projections fit {STEPS} --train_group_size 1", code=2, data=few)
    assert "texts cannot fit maps of 32 numbers" in capfd.readouterr().err


def test_weights_move_to_a_group_of_their_own_with_their_decay():
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(4)]
    optimizer = torch.optim.AdamW([{"params": weights[:2], "weight_decay": 0.1}, {"params": weights[2:]}], lr=1.0)
    separate_group(optimizer, weights[1:3], 0.5)
    found = [(group["lr"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    assert found == [(1.0, 0.1, 1), (1.0, 0.01, 1), (0.5, 0.1, 1), (0.5, 0.01, 1)]


def test_gathered_weights_are_saved_in_place_of_the_modules_own(fitted, tmp_path):
    own = Projections.load(fitted / FILE)
    gathered = {name: weight + 1 for name, weight in own.state_dict().items()}
    own.save(tmp_path, {4: "x"}, gathered)
    torch.testing.assert_close(maps(tmp_path)["layer_2.bias"], maps(fitted)["layer_2.bias"] + 1)
    assert Projections.load(tmp_path / FILE).space == own.space != Projections.load(fitted / FILE).space
