"""The command pretrain: a backbone that train takes, exact resume, skipped steps, refusals."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from conftest import save_model, slow_except
from safetensors.torch import load_file

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES, PretrainObjective, PretrainOptions
from starbucks_retrieval.pretrain.__main__ import PRESETS, main


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents in which a word is followed by the next one, so that there is something to learn; some are too short."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{(start + i) % 95}" for i in range(14)) for start in rng.integers(0, 95, 60)]
    path.write_text("\n".join([*lines, "", "w1 w2"]) + "\n")
    return path


def run_pretrain(model, text, output, *words):
    fixed = "--max_steps 4 --per_device_train_batch_size 4 --logging_steps 1 --save_strategy no --max_length 32 --quiet"
    flags = ["--model_name_or_path", str(model), "--dataset_path", str(text), "--output_dir", str(output)]
    return run_command(main, [*flags, *fixed.split(), *map(str, words)])


def history(output):
    return [e for e in json.loads((output / "training.json").read_text())["history"] if "loss" in e]


@pytest.mark.parametrize(
    "objective",
    slow_except(["smae", "retromae"], ["smae", "mlm-sizes", "mlm", "retromae", "retromae-basic", "smae-enhanced"]),
)
def test_every_objective_trains_a_backbone_that_train_takes(tiny_bert, text, tmp_path, objective):
    from transformers import AutoModelForMaskedLM

    from starbucks_retrieval.train.__main__ import main as train

    assert run_pretrain(tiny_bert, text, tmp_path / "m", "--objective", objective) == 0
    losses = history(tmp_path / "m")
    assert len(losses) == 4 and all(np.isfinite(entry["loss"]) for entry in losses)
    decoder = objective not in ("mlm", "mlm-sizes")
    assert any(name.startswith("dec/") for name in losses[0]) == decoder
    assert (len([n for n in losses[0] if n.startswith("enc/")]) == 1) == (
        objective in ("mlm", "retromae", "retromae-basic")
    )
    assert (tmp_path / "m" / "decoder" / "decoder.safetensors").is_file() == decoder
    AutoModelForMaskedLM.from_pretrained(tmp_path / "m")
    assert "| enc/" in (tmp_path / "m" / "README.md").read_text()
    (tmp_path / "rows.jsonl").write_text('{"query": "w1", "positive": "w1 w2"}\n{"query": "w5", "positive": "w5 w6"}\n')
    words = f"--model_name_or_path {tmp_path}/m --dataset_path {tmp_path}/rows.jsonl --output_dir {tmp_path}/trained"
    fixed = "--train_group_size 1 --max_steps 1 --save_strategy no --quiet"
    assert run_command(train, f"{words} {fixed}".split()) == 0
    trained = NestedEncoder.from_pretrained(tmp_path / "trained")
    assert trained.sizes == NestedEncoder.from_pretrained(tmp_path / "m").sizes or objective in (
        "mlm",
        "retromae",
        "retromae-basic",
    )


def test_from_scratch_takes_no_weight_of_the_backbone(tiny_bert, text, tmp_path):
    def first_layer(folder):
        return load_file(folder / "model.safetensors")["bert.encoder.layer.0.attention.self.query.weight"]

    for name, words in {
        "a": [],
        "b": ["--from_scratch"],
        "c": ["--from_scratch"],
        "d": ["--from_scratch", "--seed", 1],
    }.items():
        fixed = ("--objective", "mlm", "--learning_rate", "1e-9", "--max_steps", 1)
        assert run_pretrain(tiny_bert, text, tmp_path / name, *fixed, *words) == 0
    kept, one, again, other = (first_layer(tmp_path / name) for name in "abcd")
    old = NestedEncoder.from_pretrained(tiny_bert).backbone.state_dict()["encoder.layer.0.attention.self.query.weight"]
    assert torch.allclose(kept, old, atol=1e-6) and not torch.allclose(one, old, atol=1e-3)
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert "from scratch" in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.slow
def test_the_loss_of_every_size_falls(tiny_bert, text, tmp_path):
    words = (
        "--max_steps",
        60,
        "--learning_rate",
        1e-2,
        "--sizes",
        "1:8,2:16,4:32",
        "--per_device_train_batch_size",
        16,
    )
    assert run_pretrain(tiny_bert, text, tmp_path / "m", *words) == 0
    losses = history(tmp_path / "m")
    for name in ("enc/1:8", "dec/1:8", "enc/2:16", "dec/2:16", "enc/4:32", "dec/4:32"):
        first, last = (np.mean([entry[name] for entry in part]) for part in (losses[:10], losses[-10:]))
        assert last < 0.9 * first, name


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_resuming_ends_where_an_uninterrupted_run_does(tiny_bert, text, tmp_path, workers):
    words = (
        "--max_steps",
        4,
        "--save_strategy",
        "steps",
        "--save_steps",
        2,
        "--learning_rate",
        1e-3,
        "--sizes",
        "2:8,4:32",
    )
    words += ("--dataloader_num_workers", workers, "--gradient_accumulation_steps", 2)
    folder, files = tmp_path / "m", ("model.safetensors", "decoder/decoder.safetensors")
    assert run_pretrain(tiny_bert, text, folder, *words) == 0
    whole = {file: load_file(folder / file) for file in files}
    for file in (*files, "checkpoint-4/trainer_state.json"):  # killed while it was written
        (folder / file).unlink()
    assert run_pretrain(tiny_bert, text, folder, *words, "--resume_from_checkpoint", "true") == 0
    for file in files:
        resumed = load_file(folder / file)
        assert whole[file].keys() == resumed.keys()
        assert all(torch.equal(whole[file][name], resumed[name]) for name in resumed), file
    assert (
        run_pretrain(tiny_bert, text, folder, *words, "--learning_rate", 1e-2, "--resume_from_checkpoint", "true") == 2
    )


def test_a_step_with_a_nan_gradient_is_skipped(tiny_bert, text, tmp_path, monkeypatch, capfd):
    from starbucks_retrieval.pretrain.module import PretrainingModule

    forward, broken = PretrainingModule.forward, {2, 3}

    def sometimes(self, **batch):
        output = forward(self, **batch)
        return output | {"loss": output["loss"] * (float("nan") if self.step[1] in broken else 1)}

    monkeypatch.setattr(PretrainingModule, "forward", sometimes)
    words = (
        "--learning_rate",
        1e-3,
        "--lr_scheduler_type",
        "constant",
        "--warmup_steps",
        0,
        "--save_strategy",
        "steps",
        "--save_steps",
        1,
    )
    assert run_pretrain(tiny_bert, text, tmp_path / "m", *words, "--save_total_limit", 9) == 0
    saved = [load_file(tmp_path / "m" / f"checkpoint-{step}" / "model.safetensors") for step in (1, 2, 3, 4)]
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(saved)]
    assert same == [False, True, True]
    assert all(torch.isfinite(weight).all() for weight in saved[3].values())
    assert "skipped for NaN or infinite gradients: 2" in (tmp_path / "m" / "README.md").read_text()
    broken.update(range(10))
    assert run_pretrain(tiny_bert, text, tmp_path / "n", "--max_skipped_steps", 2) == 2
    assert "3 steps had NaN or infinite gradients" in capfd.readouterr().err


def test_short_documents_are_dropped_and_counted_and_the_text_wraps(tiny_bert, text, tmp_path):
    rows = [{"text": line} for line in text.read_text().splitlines()]  # an empty one among them
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--max_steps", 5, "--per_device_train_batch_size", 16)
    assert run_pretrain(tiny_bert, tmp_path / "text.jsonl", tmp_path / "m", *words) == 0
    figures = json.loads((tmp_path / "m" / "training.json").read_text())["figures"]
    assert figures["dropped_documents"]["empty"] >= 1 and figures["dropped_documents"]["short"] >= 1
    assert figures["tokens"] > 5 * 16 * 10


# The others run in the tests of a preset in a file and of pairs, or differ from these in values.
@pytest.mark.parametrize("name", slow_except([name for name in PRESETS if name.startswith("starbucks")], PRESETS))
def test_every_preset_trains(tiny_bert, text, tmp_path, name):
    if PRESETS[name].get("mode") == "pairs":
        text = tmp_path / "pairs.jsonl"
        text.write_text('{"anchor": "w1", "positive": "w2 w3"}\n' * 4)
    words = (
        "--preset",
        name,
        "--bf16",
        "false",
        "--fp16",
        "false",
        "--gradient_accumulation_steps",
        1,
        "--max_length",
        32,
    )
    assert (
        run_pretrain(tiny_bert, text, tmp_path / "m", *words, "--max_steps", 1, "--per_device_train_batch_size", 4) == 0
    )


def test_a_preset_in_a_file_is_taken(tiny_bert, text, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(
        f"preset: retromae-stage2\nmodel_name_or_path: {tiny_bert}\ndataset_path: {text}\noutput_dir: {tmp_path}/m\n"
        "max_steps: 1\nper_device_train_batch_size: 4\nmax_length: 32\nsave_strategy: 'no'\n"
    )
    words = [str(tmp_path / "run.yaml"), "--fp16", "false", "--weight_decay", "default", "--quiet"]
    assert run_command(main, [*words, "--print_config", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["configuration"]
    assert printed["encoder_mlm_probability"] == {"value": 0.3, "source": "preset retromae-stage2"}
    assert not (tmp_path / "m").exists()
    assert run_command(main, words) == 0
    record = json.loads((tmp_path / "m" / "training.json").read_text())["configuration"]
    assert (record["pretrain"]["objective"], record["pretrain"]["max_length"]) == ("retromae", 32)
    assert (record["transformers"]["learning_rate"], record["transformers"]["weight_decay"]) == (1e-4, 0.0)


def test_the_contrastive_term_separates_spans_of_different_documents(tiny_bert, text, tmp_path):
    words = ("--objective", "retromae", "--contrastive_weight", 1, "--mode", "spans", "--max_steps", 1)
    assert run_pretrain(tiny_bert, text, tmp_path / "m", *words) == 0
    assert "ctr" in history(tmp_path / "m")[0]


def test_nli_pairs_are_the_second_stage_with_a_contrastive_term(tiny_bert, tmp_path, capsys):
    rows = [{"anchor": f"w{i} w{i + 1}", "positive": f"w{i} w{i + 2} w3", "negative": "w9"} for i in range(20)]
    (tmp_path / "nli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--preset", "retromae-stage2-nli", "--fp16", "false", "--max_length", 32, "--max_steps", 1)
    assert run_pretrain(tiny_bert, tmp_path / "nli.jsonl", tmp_path / "m", *words) == 0
    record = history(tmp_path / "m")[0]
    assert "ctr" in record and any(name.startswith("dec") for name in record)
    (tmp_path / "ids.jsonl").write_text('{"query_id": "1", "query_text": "w1", "positive_document_ids": ["d1"]}\n')
    assert run_pretrain(tiny_bert, tmp_path / "ids.jsonl", tmp_path / "n", *words) == 2
    assert "ids.jsonl:1: the row holds ids of passages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mode pairs --paragraphs true", "anchor and positive"),
        ("--max_steps -1", "no end"),
        ("--sizes 9:8", "layer 9"),
        ("--sizes 1:8,4:64", "64"),
        ("--objective mlm --sizes 1:8", "full size alone"),
        ("--objective mlm --decoder_layers 2", "decoder"),
        ("--objective retromae --decoder_layers 2", "second layer"),
        ("--objective retromae --variant starbucks-released", "smae"),
        ("--contrastive_weight 1", "spans"),
        ("--encoder_mlm_probability 2", "between 0 and 1"),
        ("--preset nonsense", "no preset"),
        ("--dataset_path absent.txt", "absent.txt"),
        ("--deepspeed x.json", "DDP"),
        ("--fsdp", "DDP"),
        ("--max_length 8", "too few tokens"),
    ],
)
def test_bad_input_is_refused_before_training(tiny_bert, text, tmp_path, capfd, words, message):
    assert run_pretrain(tiny_bert, text, tmp_path / "m", *words.split()) == 2
    printed = capfd.readouterr().err
    assert message in printed and "Traceback" not in printed
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_text_without_documents_and_models_without_masks_are_refused(tiny_bert, text, tmp_path, capfd):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    assert run_pretrain(tiny_bert, empty, tmp_path / "m") == 2
    assert run_pretrain(save_model(tmp_path / "llama", "llama"), text, tmp_path / "n") == 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_registered_objective_trains_and_gets_its_card(tiny_bert, text, tmp_path):
    objective = PretrainObjective("a method of another package", PretrainOptions(mae=False))
    PRETRAIN_OBJECTIVES.register("added", objective, help="an objective of a test")
    try:
        assert run_pretrain(tiny_bert, text, tmp_path / "m", "--objective", "added", "--max_steps", 1) == 0
    finally:
        del PRETRAIN_OBJECTIVES._entries["added"]
    assert "pre-trained by a method of another package" in (tmp_path / "m" / "README.md").read_text()
