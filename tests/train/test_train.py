"""The command train: model folder, resume, dev scores, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import save_model
from safetensors.torch import load_file

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A BEIR folder in which a query shares its words with its passage."""
    folder = tmp_path_factory.mktemp("set")
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.integers(0, 95, 6)] for _ in range(60)]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "title": "", "text": " ".join(w)}) + "\n" for i, w in enumerate(words))
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": " ".join(w[:3])}) + "\n" for i, w in enumerate(words))
    )
    (folder / "qrels").mkdir()
    for split, ids in (("train", range(40)), ("dev", range(40, 60))):
        lines = "".join(f"q{i}\td{i}\t1\n" for i in ids)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


def flags(tiny_bert, dataset, output, *more):
    common = "--train_group_size 1 --per_device_train_batch_size 8 --learning_rate 1e-3 --logging_steps 2 --quiet"
    return [
        *("--model_name_or_path", str(tiny_bert), "--dataset_path", str(dataset), "--output_dir", str(output)),
        *common.split(),
        *more,
    ]


def train(*arguments):
    assert run_command(main, flags(*arguments)) == 0


def test_writes_a_plain_folder_with_sizes_and_card(tiny_bert, dataset, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    out = tmp_path / "model"
    train(
        *(tiny_bert, dataset, out, "--max_steps", "6", "--sizes", "1:8,4:32", "--pooling", "mean"),
        *("--query_prefix", "w1 ", "--eval_dataset_path", str(dataset), "--eval_steps", "3", "--save_steps", "3"),
    )
    AutoTokenizer.from_pretrained(out)
    assert AutoModel.from_pretrained(out).config.num_hidden_layers == 4
    assert not list(out.rglob("*data-cache*")) and not list(out.glob("*.bin"))
    encoder = NestedEncoder.from_pretrained(out)
    assert str(encoder.sizes) == "1:8,4:32"
    assert (encoder.config.pooling, encoder.config.query_prefix, encoder.config.passage_max_len) == ("mean", "w1 ", 60)
    card = (out / "README.md").read_text()
    assert "| 1:8 |" in card and "nDCG@10 before" in card and "learning rate: 0.001" in card
    record = json.loads((out / "training.json").read_text())
    scores = [entry for entry in record["history"] if "eval_nDCG@10" in entry]
    assert [entry["step"] for entry in scores] == [0, 3, 6]
    assert {"eval_nDCG@10/1:8", "eval_nDCG@10/4:32", "eval_RR@10"} <= set(scores[0])
    losses = [entry for entry in record["history"] if "loss" in entry]
    assert {"ce/1:8", "kl/1:8", "ce/4:32"} <= set(losses[0]) and "kl/4:32" not in losses[0]
    best = max(scores[1:], key=lambda entry: entry["eval_nDCG@10"])["step"]
    assert torch.equal(
        load_file(out / "model.safetensors")["embeddings.word_embeddings.weight"],
        load_file(out / f"checkpoint-{best}" / "model.safetensors")["embeddings.word_embeddings.weight"],
    )


def test_training_learns(tiny_bert, dataset, tmp_path):
    train(tiny_bert, dataset, tmp_path / "m", "--max_steps", "24", "--sizes", "2:16,4:32", "--learning_rate", "1e-2")
    history = [e for e in json.loads((tmp_path / "m" / "training.json").read_text())["history"] if "loss" in e]
    assert history[-1]["ce/2:16"] < 0.8 * history[0]["ce/2:16"]
    assert history[-1]["ce/4:32"] < 0.8 * history[0]["ce/4:32"]


def test_the_same_command_works_after_a_kill_before_the_first_checkpoint(tiny_bert, dataset, tmp_path):
    (tmp_path / "m" / "_data-cache-0").mkdir(parents=True)
    (tmp_path / "m" / "_data-cache-0" / "passages-0.arrow").write_bytes(b"half")
    train(tiny_bert, dataset, tmp_path / "m", "--max_steps", "1", "--save_strategy", "no")
    assert not (tmp_path / "m" / "_data-cache-0").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), pytest.param(("--gradient_checkpointing",), marks=pytest.mark.slow)])
def test_resuming_ends_where_an_uninterrupted_run_does(tiny_bert, dataset, tmp_path, words):
    steps = ("--num_train_epochs", "2", "--save_steps", "7", "--sizes", "2:8,4:32", *words)
    train(tiny_bert, dataset, tmp_path / "whole", *steps)
    train(tiny_bert, dataset, tmp_path / "cut", *steps)
    # what a kill after step 7 leaves behind
    for path in (tmp_path / "cut").iterdir():
        if path.name != "checkpoint-7" and path.is_file():
            path.unlink()
    (tmp_path / "cut" / "checkpoint-10" / "trainer_state.json").unlink()  # killed while it was written
    train(tiny_bert, dataset, tmp_path / "cut", *steps, "--resume_from_checkpoint", "true")
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    for name in whole:
        torch.testing.assert_close(whole[name], cut[name], rtol=0, atol=0, msg=name)


def test_two_equal_runs_give_equal_weights(tiny_bert, dataset, tmp_path):
    for name in ("a", "b"):
        train(tiny_bert, dataset, tmp_path / name, "--max_steps", "2", "--save_strategy", "no", "--seed", "7")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_master_weights_stay_float32_under_bf16(tiny_bert, dataset, tmp_path):
    train(tiny_bert, dataset, tmp_path / "m", "--max_steps", "2", "--bf16", "--save_strategy", "no")
    before, after = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "m" / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert after[name].dtype == torch.float32
    moved = (after[name] - before[name]).abs()
    assert 0 < moved[moved > 0].min() < 1e-3  # steps far below the grain of a bf16 weight of its size


def test_old_flags_are_mapped(tiny_bert, dataset, tmp_path):
    old = "--layer_list 2,4 --embedding_dim_list 8,32 --kl_divergence_weight 0 --srl_training --warmup_ratio 0.5"
    train(tiny_bert, dataset, tmp_path / "m", "--max_steps", "2", "--save_strategy", "no", *old.split())
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    assert str(NestedEncoder.from_pretrained(tmp_path / "m").sizes) == "2:8,4:32"
    assert not any(key.startswith("kl/") for entry in record["history"] for key in entry)
    assert record["configuration"]["transformers"]["warmup_steps"] == 0.5


def configured(capsys, *argv):
    """Name → value and source, as --print_config tells them of a job over a folder that nobody reads."""
    needed = ("--model_name_or_path", "m", "--dataset_path", "d", "--output_dir", "never-written")
    assert run_command(main, [*map(str, argv), *needed, "--print_config", "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)["configuration"]
    return {name: (entry["value"], entry["source"]) for name, entry in printed.items()}


def test_a_preset_in_a_file_is_taken_and_overridden_by_the_file_and_by_flags(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("preset: separate-msmarco\nsizes: 6:128\nlearning_rate: 3e-5\nquery_max_len: 20\n")
    printed = configured(capsys, path, "--query_max_len", "24")
    assert printed["preset"] == ("separate-msmarco", f"file {path}")
    assert printed["objective"] == ("separate", "preset separate-msmarco")
    assert printed["per_device_train_batch_size"] == (128, "preset separate-msmarco")
    assert printed["learning_rate"] == (3e-5, f"file {path}") and printed["query_max_len"] == (24, "flag")
    assert printed["fp16"] == (False, "default") and printed["save_total_limit"] == (2, "default")
    other = configured(capsys, path, "--preset", "retromae-msmarco")
    assert other["objective"] == ("full", "preset retromae-msmarco") and other["learning_rate"][0] == 3e-5
    assert not (tmp_path / "never-written").exists()


def test_a_file_goes_over_a_preset_that_a_flag_names(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("kl_weight: 0\nlearning_rate: 3e-5\n")
    printed = configured(capsys, path, "--preset=starbucks-msmarco")
    assert (printed["kl_weight"], printed["learning_rate"]) == ((0.0, f"file {path}"), (3e-5, f"file {path}"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--preset", "retromae-msmarco", "--warmup_ratio", 0.1), (0.1, "flag, as warmup_ratio")),
        (("--preset", "retromae-msmarco", "--warmup_steps", 0.2), (0.2, "flag")),
        (("--preset", "retromae-msmarco", "--warmup_steps", "default"), (0.1, "default")),
        (("--preset", "retromae-msmarco"), (0, "preset retromae-msmarco")),
        (("--warmup_ratio", 0.3), (0.3, "flag, as warmup_ratio")),
    ],
)
def test_the_last_source_of_the_warm_up_wins(capsys, flags, expected):
    assert configured(capsys, *flags)["warmup_steps"] == expected


def test_print_config_shows_a_preset_as_text(capsys):
    needed = ("--model_name_or_path", "m", "--dataset_path", "d", "--output_dir", "o")
    assert run_command(main, ["--preset", "retromae-beir", *needed, "--print_config"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["learning_rate", "1e-05", "preset", "retromae-beir"] in lines and ["lora", "False", "default"] in lines


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--train_group_size", "8"), "has none"),
        (("--sizes", "13:8"), "layer 13"),
        (("--sizes", "1:32,4:8"), "lack their full size"),
        (("--passage_max_len", "999"), "beyond this model's"),
        (("--no_such_flag",), "unknown argument --no_such_flag\n  try: see"),
        (("--kl_wieght", "1"), "unknown argument --kl_wieght\n  try: --kl_weight, or see"),
        (("--learning_rat", "1"), "unknown argument --learning_rat\n  try: --learning_rate, or see"),
        (("--objective", "nonsense"), "invalid choice"),
        (("--layer_list", "2,4"), "need each other"),
        (("--dataset_path", "absent.jsonl"), "no such file"),
        (("--variant", "starbucks-sts-released", "--kl_weight", "-1"), "negative"),
        (("--bf16", "maybe"), "bf16"),
        (("--warmup_ratio", "50"), "not a share"),
        (("--temperature", "default", "--temperature", "hot"), "invalid float"),
    ],
)
def test_bad_input_exits_with_2_and_leaves_no_model(tiny_bert, dataset, tmp_path, capfd, more, message):
    assert run_command(main, flags(tiny_bert, dataset, tmp_path / "m", *more)) == 2
    printed = capfd.readouterr().err
    assert message in printed and "Traceback" not in printed
    assert not (tmp_path / "m" / "model.safetensors").exists()
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_dev_qrel_for_an_unknown_document_is_named(tiny_bert, dataset, tmp_path, capfd):
    import shutil

    shutil.copytree(dataset, tmp_path / "set")
    with open(tmp_path / "set" / "qrels" / "dev.tsv", "a") as file:
        file.write("q41\tnowhere\t1\n")
    more = ("--eval_dataset_path", str(tmp_path / "set"), "--max_steps", "1")
    assert run_command(main, flags(tiny_bert, dataset, tmp_path / "m", *more)) == 2
    assert "nowhere" in capfd.readouterr().err


def test_a_folder_that_is_not_empty_is_left_alone(tiny_bert, dataset, tmp_path, capfd):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert run_command(main, flags(tiny_bert, dataset, tmp_path)) == 2
    assert "not empty" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_trained_sizes_encode_without_the_layers_above(tiny_bert, dataset, tmp_path):
    train(tiny_bert, dataset, tmp_path / "m", "--max_steps", "1", "--sizes", "2:8,4:32", "--save_strategy", "no")
    whole = NestedEncoder.from_pretrained(tmp_path / "m").encode(["w1 w2"])
    cut = NestedEncoder.from_pretrained(tmp_path / "m", layers=2).encode(["w1 w2"])
    assert np.array_equal(whole[Size(2, 8)], cut[Size(2, 8)])


@pytest.mark.parametrize(
    ("family", "words", "used"),
    [
        ("bert", [], True),
        pytest.param("bert", ["--gradient_checkpointing"], True, marks=pytest.mark.slow),
        ("mpnet", [], False),
    ],
)
def test_no_padding_is_computed_on_a_cpu_where_it_can_be_left_out(dataset, tmp_path, monkeypatch, family, words, used):
    passes, forward = [], NestedEncoder.forward_unpadded
    monkeypatch.setattr(
        NestedEncoder, "forward_unpadded", lambda *given, **named: passes.append(1) or forward(*given, **named)
    )
    save_model(tmp_path / "start", family)
    train(tmp_path / "start", dataset, tmp_path / "m", "--max_steps", "1", "--save_strategy", "no", "--use_cpu", *words)
    assert bool(passes) == used
    assert "starbucks" not in (tmp_path / "m" / "config.json").read_text().lower()
