"""Methods, tasks, adapters and backbones through the command."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
import torch
from conftest import save_model, slow_except
from safetensors.torch import load_file

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.presets import PRESETS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of every kind that train reads: groups with a teacher's scores, NLI triples, scored pairs."""
    folder = tmp_path_factory.mktemp("kinds")
    rng = np.random.default_rng(0)

    def text():
        return [f"w{i}" for i in rng.integers(0, 95, 5)]

    with open(folder / "rows.jsonl", "w") as rows, open(folder / "nli.jsonl", "w") as nli:
        for _ in range(24):
            query = text()
            row = {
                "query": " ".join(query[:3]),
                "positive": " ".join(query),
                "negative": [" ".join(text()) for _ in "12"],
            }
            rows.write(json.dumps(row | {"positive_scores": [4.0], "negative_scores": [0.5, 0.0]}) + "\n")
            nli.write(
                json.dumps({"anchor": row["query"], "positive": row["positive"], "negative": row["negative"][0]}) + "\n"
            )
    with open(folder / "pairs.tsv", "w") as pairs:
        pairs.write("split\tscore\tsentence1\tsentence2\n")
        for i in range(40):
            first, second = text(), text()
            shared = int(rng.integers(0, 5))  # equal sentences would tie up to rounding
            line = (" ".join(first), " ".join(first[:shared] + second[shared:]))
            pairs.write(f"{'train' if i < 24 else 'dev'}\t{shared}\t{line[0]}\t{line[1]}\n")
    (folder / "texts.txt").write_text("".join(f"{' '.join(text())}\n" for _ in range(80)))
    return folder


def run_train(model, output, *words):
    fixed = "--max_steps 2 --per_device_train_batch_size 4 --logging_steps 1 --save_strategy no --quiet"
    more = [part for word in words for part in (word.split() if isinstance(word, str) else [str(word)])]
    return run_command(main, ["--model_name_or_path", str(model), "--output_dir", str(output), *fixed.split(), *more])


def history(output):
    return json.loads((output / "training.json").read_text())["history"]


# Of the presets of one method only the values and the task differ.
FIRST = {preset.get("objective"): name for name, preset in reversed(PRESETS.items())}


@pytest.mark.parametrize("name", slow_except({*FIRST.values(), "starbucks-stsb-released"}, PRESETS))
def test_every_preset_trains(tiny_bert, data, tmp_path, name):
    words = ["--preset", name, "--bf16", "false", "--fp16", "false", "--gradient_accumulation_steps", "1"]
    words += ["--query_max_len", "16", "--passage_max_len", "16", "--warmup_steps", "0", "--save_strategy", "no"]
    if name == "starbucks-stsb-released":
        kind = ("pairs.tsv", "--dataset_split", "train")
    else:
        kind = ("nli.jsonl",) if PRESETS[name].get("task") == "sts" else ("rows.jsonl",)
    if name == "distil":
        kind = ("texts.txt",)
    if PRESETS[name].get("objective") == "separate":
        words += ["--sizes", "2:16"]
    if "train_dims" in PRESETS[name]:
        words += ["--train_dims", "8,16,32"]
    assert run_train(tiny_bert, tmp_path / "m", "--dataset_path", data / kind[0], *kind[1:], *words) == 0
    losses = [entry["loss"] for entry in history(tmp_path / "m") if "loss" in entry]
    assert len(losses) == 2 and np.isfinite(losses).all()
    encoder = NestedEncoder.from_pretrained(tmp_path / "m")
    own = {"pooling": "cls", "normalize": False, "temperature": 1.0} | PRESETS[name]
    expected = (own["pooling"], own["normalize"], own["temperature"])
    assert (encoder.config.pooling, encoder.config.normalize, encoder.config.temperature) == expected
    vectors = encoder.encode(["w1 w2"])
    assert set(vectors) == set(encoder.sizes)


def test_a_separate_model_has_the_layers_of_its_size_only(tiny_bert, data, tmp_path):
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size 2 --objective separate --sizes 2:16")
    assert run_train(tiny_bert, tmp_path / "m", *words) == 0
    encoder = NestedEncoder.from_pretrained(tmp_path / "m")
    assert encoder.num_layers == 2 and str(encoder.sizes) == "2:16"
    assert run_train(tiny_bert, tmp_path / "wide", *words, "--train_dim", "false") == 0
    assert "ce/2:32" in history(tmp_path / "wide")[0] and "ce/2:16" in history(tmp_path / "m")[0]
    assert str(NestedEncoder.from_pretrained(tmp_path / "wide").sizes) == "2:16"
    assert run_train(tiny_bert, tmp_path / "deep", *words, "--passage_layers", "2:4") == 0
    assert NestedEncoder.from_pretrained(tmp_path / "deep").num_layers == 4


def test_similarity_from_triples_with_a_dev_set(tiny_bert, data, tmp_path):
    words = ("--task", "sts", "--dataset_path", data / "nli.jsonl", "--eval_dataset_path", data / "pairs.tsv")
    more = "--sizes 2:16,4:32 --eval_steps 1 --save_strategy steps --save_steps 1"
    assert run_train(tiny_bert, tmp_path / "m", *words, more) == 0
    encoder = NestedEncoder.from_pretrained(tmp_path / "m")
    assert (encoder.config.pooling, encoder.config.normalize, encoder.config.temperature) == ("mean", True, 0.05)
    scores = [entry for entry in history(tmp_path / "m") if "eval_spearman" in entry]
    assert [entry["step"] for entry in scores] == [0, 1, 2]
    assert scores[0]["eval_spearman"] == pytest.approx(
        (scores[0]["eval_spearman/2:16"] + scores[0]["eval_spearman/4:32"]) / 2
    )


def test_spearman_of_the_dev_set(tiny_bert, data):
    from scipy.stats import rankdata

    from starbucks_retrieval.train.trainer import DevPairs

    encoder = NestedEncoder.from_pretrained(tiny_bert)
    found = DevPairs(str(data / "pairs.tsv"), "dev").score(encoder, encoder.sizes)
    lines = [line.split("\t") for line in (data / "pairs.tsv").read_text().splitlines()[1:]]
    dev = [line for line in lines if line[0] == "dev"]
    size = Size(4, 32)
    first, second = (encoder.encode([line[i] for line in dev])[size] for i in (2, 3))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(first, second)]
    expected = np.corrcoef(rankdata(cosines), rankdata([float(line[1]) for line in dev]))[0, 1]
    assert found == {"spearman": pytest.approx(expected), "spearman/4:32": pytest.approx(expected)}


@pytest.mark.slow
def test_scored_pairs_are_learnt_with_cosent(tiny_bert, data, tmp_path):
    words = ("--task", "sts", "--dataset_path", data / "pairs.tsv", "--dataset_split", "train", "--sizes", "4:32")
    more = "--max_steps 30 --learning_rate 3e-3 --per_device_train_batch_size 12"
    assert run_train(tiny_bert, tmp_path / "m", *words, more) == 0
    losses = [entry["loss"] for entry in history(tmp_path / "m") if "loss" in entry]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_distillation_at_every_size(tiny_bert, data, tmp_path):
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size 3 --distil_weight 2 --sizes 2:8,4:32")
    assert run_train(tiny_bert, tmp_path / "m", *words) == 0
    assert {"distil/2:8", "distil/4:32"} <= set(history(tmp_path / "m")[0])


@pytest.mark.parametrize("family", slow_except(["qwen2"], ["llama", "qwen2", "modernbert"]))
def test_other_backbones_train_with_adapters(data, tmp_path, family):
    model = save_model(tmp_path / family, family)
    words = (
        "--dataset_path",
        data / "rows.jsonl",
        "--train_group_size 2 --sizes 2:8,4:32 --learning_rate 1e-2",
    )
    assert run_train(model, tmp_path / "m", *words, "--lora", "--lora_r", 4, "--gradient_checkpointing", "true") == 0
    encoder = NestedEncoder.from_pretrained(tmp_path / "m")
    assert encoder.config.pooling == ("cls" if family == "modernbert" else "last")
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "m" / "model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("embed" not in name and "norm" not in name for name in moved)
    assert not any("lora" in name for name in after)


LORA = ("--train_group_size 2 --sizes 2:8,4:32 --learning_rate 1e-2 --lora --lora_dropout 0.1",)


def test_what_is_merged_is_what_the_adapters_compute(tiny_bert, data, tmp_path):
    assert run_train(tiny_bert, tmp_path / "m", "--dataset_path", data / "rows.jsonl", *LORA) == 0
    merged, adapter = (
        load_file(tmp_path / "m" / name) for name in ("model.safetensors", "adapter/adapter.safetensors")
    )
    name = "encoder.layer.0.attention.self.query"
    delta = 32 / 16 * adapter[f"{name}.lora_B.default.weight"] @ adapter[f"{name}.lora_A.default.weight"]
    base = load_file(tiny_bert / "model.safetensors")[f"{name}.weight"]
    torch.testing.assert_close(merged[f"{name}.weight"], base + delta)
    assert delta.abs().max() > 0


@pytest.mark.slow
def test_a_run_with_adapters_resumes(tiny_bert, data, tmp_path):
    words = ("--dataset_path", data / "rows.jsonl", *LORA)
    words += ("--max_steps", 4, "--save_strategy", "steps", "--save_steps", 2)
    assert run_train(tiny_bert, tmp_path / "whole", *words) == 0
    assert run_train(tiny_bert, tmp_path / "cut", *words) == 0
    cut = tmp_path / "cut"
    for name in ("model.safetensors", "checkpoint-4/trainer_state.json"):
        (cut / name).unlink()
    assert run_train(tiny_bert, cut, *words, "--resume_from_checkpoint", "true") == 0
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", cut))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_nan_loss_stops_the_run_and_names_the_queries(tiny_bert, data, tmp_path, capfd, monkeypatch):
    from starbucks_retrieval.train.module import TrainingModule

    forward, calls = TrainingModule.forward, []

    def broken(self, **batch):
        calls.append(1)
        output = forward(self, **batch)
        return output | {"loss": output["loss"] * (float("nan") if len(calls) == 3 else 1)}

    monkeypatch.setattr(TrainingModule, "forward", broken)
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size", 2, "--max_steps", 6)
    assert run_train(tiny_bert, tmp_path / "m", *words, "--save_strategy", "steps", "--save_steps", 2) == 2
    printed = capfd.readouterr().err
    assert "the loss is nan at step 3, in the batch of queries " in printed and "checkpoint-2" in printed
    from starbucks_retrieval.data import open_groups

    ids = printed.split("of queries ")[1].split(";")[0].split(", ")
    assert len(ids) == 4 and set(ids) <= {group.query_id for group in open_groups(str(data / "rows.jsonl"))}


def test_a_resumed_run_must_be_the_same_run(tiny_bert, data, tmp_path, capfd):
    words = (
        "--dataset_path",
        data / "rows.jsonl",
        "--train_group_size 2 --max_steps 1 --save_strategy steps --save_steps 1",
    )
    assert run_train(tiny_bert, tmp_path / "m", *words, "--learning_rate", 1e-4) == 0
    again = (*words, "--learning_rate", 1e-3, "--kl_weight", 2, "--resume_from_checkpoint", "true")
    assert run_train(tiny_bert, tmp_path / "m", *again) == 2
    printed = capfd.readouterr().err
    assert "learning_rate 0.001 (was 0.0001)" in printed and "kl_weight 2.0 (was None)" in printed
    assert "--override" in printed
    assert run_train(tiny_bert, tmp_path / "m", *again, "--max_steps", 2, "--override") == 0
    same = (*words, "--learning_rate", 1e-3, "--kl_weight", 2, "--resume_from_checkpoint", "true", "--max_steps", 2)
    assert run_train(tiny_bert, tmp_path / "m", *same) == 0


def test_old_flags_of_the_reproduction_are_mapped(tiny_bert, data, tmp_path):
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size", 2, "--objective", "2dmse-v2")
    old = (
        "--variant retrieval --embedding_dim_list 8,16 --passage_to_last_layer --sub_layer_full_dim --score_align true"
    )
    assert run_train(tiny_bert, tmp_path / "m", *words, *old.split()) == 0
    parts = set(history(tmp_path / "m")[0])
    assert {"ce/1:8", "ce/1:16", "ce/4:16", "align/1"} <= parts
    record = json.loads((tmp_path / "m" / "training.json").read_text())["configuration"]["train"]
    assert (record["passage_layers"], record["full_dim"], record["train_dims"]) == ("last", True, "8,16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--variant eq12", "no variant eq12"),
        ("--score_align true", "not an option of --objective srl"),
        ("--objective mrl --kl_temperature 2", "not an option of --objective mrl"),
        ("--objective separate", "one size"),
        ("--objective separate --sizes 2:8,4:32", "one size"),
        ("--objective full --sizes 2:8", "4:32 alone"),
        ("--objective 2dmse --train_layers 4", "from 1 to 3"),
        ("--objective 2dmse-v2 --variant angle --train_dims 7", "7 is odd"),
        ("--sizes 1:7,4:32 --angle_weight 1", "7 is odd"),
        ("--cosent_weight 1", "cosines"),
        ("--objective 2dmse-v2 --compare_to_last_layer true", "compares scores"),
        ("--gc_p_chunk_size 4", "--grad_cache"),
        ("--grad_cache --gc_p_chunk_size -4", "at least one"),
        ("--fix_doc --passage_layers 2:4", "contradict"),
        ("--passage_layers 2:9", "layer 9 of 4"),
        ("--fix_doc --anchor_weight 1", "same layer"),
        ("--preset nonsense", "no preset nonsense"),
        ("--objective_options kl_space=coords", "cannot be compared"),
        ("--objective_options nonsense=1", "no such option"),
        ("--objective 2dmse --objective_options term_weights=0,1,1,1", "does not fit"),
        ("--objective 2dmse --objective_options term_weights=[0,1,1]", "λ1 to λ4"),
        ("--objective_options reduction=median", "does not fit"),
        ("--objective_options detach_teacher=3", "does not fit"),
        ("--objective_options kl_multiplier=much", "does not fit"),
        ("--objective_options kl_multiplier=true", "does not fit"),
        ("--distil_weight 1 --dataset_path {plain}", "teacher's scores"),
        ("--lora --lora_target_modules nonsense", "lora_target_modules"),
        ("--task sts --dataset_path {pairs} --dataset_split train --contrastive_weight 1", "no positives"),
        ("--task sts --dataset_path {pairs} --dataset_split train --binary_weight 1", "set --binary_weight 0"),
        ("--task sts --eval_dataset_path {pairs} --eval_measures nDCG@10 --save_strategy steps", "spearman"),
        ("--task sts --dataset_path {pairs} --dataset_split test", "test"),
        ("--temperature 0", "positive"),
    ],
)
def test_contradictions_are_refused(tiny_bert, data, tmp_path, capfd, words, message):
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"query": "w1", "positive": "w2", "negative": "w3"}\n')
    files = {"plain": plain, "pairs": data / "pairs.tsv"}
    more = words.format(**files).split()
    kind = [] if "--dataset_path" in more else ["--dataset_path", data / "rows.jsonl"]
    group = [] if "sts" in more else ["--train_group_size", 2]
    assert run_train(tiny_bert, tmp_path / "m", *kind, *group, *more) == 2
    printed = capfd.readouterr().err
    assert message in printed and "Traceback" not in printed
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_deepspeed_that_is_not_installed_is_named(tiny_bert, data, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size", 2, "--deepspeed", "zero.json")
    assert run_train(tiny_bert, tmp_path / "m", *words) == 2
    assert "starbucks-retrieval[deepspeed]" in capfd.readouterr().err


def test_other_options_reach_the_objective(tiny_bert, data, tmp_path):
    words = ("--dataset_path", data / "rows.jsonl", "--train_group_size", 2, "--sizes", "2:8,4:32")
    options = ("--objective_options", "kl_space=coords", "kl_teacher=same_dim", "size_weights=[1.0,0.0]")
    assert run_train(tiny_bert, tmp_path / "m", *words, *options) == 0
    assert "- objective size_weights: (1.0, 0.0)" in (tmp_path / "m" / "README.md").read_text()
