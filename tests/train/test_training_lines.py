"""What train and pretrain print, and when they write checkpoints."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
from conftest import slow_except

from starbucks_retrieval import clock
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.pretrain.__main__ import main as pretrain_main
from starbucks_retrieval.train.__main__ import main as train_main
from starbucks_retrieval.trainer.callbacks import log_line

SIZES = [f"{layer}:{dim}" for layer in range(1, 13) for dim in (32, 64, 128, 256, 512, 768)]


@pytest.fixture(params=["train", "pretrain"])
def run(request, tiny_bert, tmp_path, capfd):
    """Runs one of the two stages, and returns what it printed."""
    rows = [
        {"query": f"w{i}", "positive": f"w{i} w{i + 1}", "text": " ".join(f"w{i + j}" for j in range(12))}
        for i in range(8)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = "--train_group_size 1" if request.param == "train" else "--max_length 32 --text_column text"

    def started(*words):
        fixed = f"--model_name_or_path {tiny_bert} --dataset_path {tmp_path}/data.jsonl --output_dir {tmp_path}/m"
        steps = "--per_device_train_batch_size 2 --use_cpu --sizes 1:8,2:16,4:32 --overwrite_output_dir"
        main = train_main if request.param == "train" else pretrain_main
        assert run_command(main, [*fixed.split(), *flags.split(), *steps.split(), *words]) == 0
        return capfd.readouterr().err.splitlines()

    return started


# Both stages share the code of what follows, and what a stage has of its own runs in other tests too.
of_train = pytest.mark.parametrize("run", slow_except(["train"], ["train", "pretrain"]), indirect=True)


def checkpoints(folder):
    return sorted(path.name for path in (folder / "m").glob("checkpoint-*"))


def test_lines_are_short_and_everything_is_in_the_record(run, tmp_path):
    lines = run("--max_steps", "2", "--logging_steps", "1")
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 2 and all(len(line) < 120 for line in steps) and len(lines) == len(set(lines))
    assert steps[0].startswith("step 1 of 2  loss ") and "/1:8" not in steps[0] and "grad_norm" not in steps[0]
    history = json.loads((tmp_path / "m" / "training.json").read_text())["history"]
    parts = {name: value for name, value in history[0].items() if "/" in name}
    kinds = {name.partition("/")[0] for name in parts}
    assert {"1:8", "2:16", "4:32"} <= {name.partition("/")[2] for name in parts}
    for kind in kinds:
        values = [value for name, value in parts.items() if name.startswith(f"{kind}/")]
        assert f"{kind} {sum(values) / len(values):.4g}"[: len(kind) + 4] in steps[0]
    assert "training.json" in lines[-1]


@of_train
def test_the_level_debug_prints_every_number(run):
    lines = run("--max_steps", "1", "--logging_steps", "1", "--log_level", "debug")
    full = [line for line in lines if "everything: " in line]
    assert len(full) == 1 and "/4:32 " in full[0] and "grad_norm " in full[0]


@of_train
def test_a_short_run_leaves_no_checkpoint(run, tmp_path):
    run("--max_steps", "2")
    assert (tmp_path / "m" / "model.safetensors").is_file() and checkpoints(tmp_path) == []
    run("--max_steps", "2", "--save_steps", "2")
    assert checkpoints(tmp_path) == ["checkpoint-2"]
    run("--max_steps", "3", "--save_steps", "2")
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-3"]


@of_train
def test_a_slow_run_has_a_checkpoint_without_being_asked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=iter(range(0, 10**9, 1000)).__next__))
    run("--max_steps", "11")
    assert checkpoints(tmp_path) == ["checkpoint-10"]


@of_train
@pytest.mark.slow
def test_an_interval_of_the_user_is_kept_in_a_slow_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=iter(range(0, 10**9, 1000)).__next__))
    run("--max_steps", "11", "--save_steps", "6")
    assert checkpoints(tmp_path) == ["checkpoint-11", "checkpoint-6"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"loss": 12.3456, "learning_rate": 1.23456e-05, "grad_norm": 1.0}
        | {f"{kind}/{size}": 1234.5678 for kind in ("ce", "kl", "distil", "align", "cosine") for size in SIZES},
        {"loss": 1.0} | {f"a-very-long-name-of-a-loss-{i}/{size}": 0.1 for i in range(9) for size in SIZES},
        {"eval_nDCG(judged_only=True)@1000": 0.5}
        | {f"eval_nDCG(judged_only=True)@1000/{size}": 0.25 for size in SIZES},
        {"loss": 1.0, "x" * 200: 2.0},
    ],
)
def test_no_log_makes_a_long_line(numbers):
    line = log_line("step 1000000 of 1000000", numbers)
    assert line.startswith("step 1000000 of 1000000  ") and len(line) < 120


def test_a_log_without_loss_and_score_has_no_line():
    assert log_line("step 1 of 2", {"total_flos": 1.0}) == ""


def test_dev_scores_name_the_mean_and_both_ends(tiny_bert, tmp_path, capfd, caplog):
    (tmp_path / "pairs.tsv").write_text("".join(f"{i}\tw{i} w1\tw{i} w{i + 2}\n" for i in range(1, 8)))
    words = f"--task sts --model_name_or_path {tiny_bert} --dataset_path {tmp_path}/pairs.tsv --sizes 1:8,2:16,4:32"
    words += f" --eval_dataset_path {tmp_path}/pairs.tsv --output_dir {tmp_path}/m --max_steps 3 --use_cpu"
    words += " --logging_steps 1 --per_device_train_batch_size 2"
    assert run_command(train_main, words.split()) == 0
    lines = capfd.readouterr().err.splitlines()
    dev = [line for line in lines if "  dev spearman " in line]
    assert [line.split()[1] for line in dev] == ["0", "1", "2", "3"]
    assert all("(1:8 " in line and ", 4:32 " in line and len(line) < 120 for line in dev)
    history = json.loads((tmp_path / "m" / "training.json").read_text())["history"]
    scores = {entry["step"]: entry["eval_spearman"] for entry in history if "eval_spearman" in entry}
    best = max((step for step in scores if step), key=lambda step: scores[step])
    told = [line for line in lines if "was best after step" in line]
    assert bool(told) == (best != 3) and all(f"step {best} (" in line for line in told)
    card = (tmp_path / "m" / "README.md").read_text()
    at_end = next(entry for entry in history if entry["step"] == 3 and "eval_spearman" in entry)
    assert f"{at_end['eval_spearman/4:32']:.4f}" in card  # the model is that of the last step


def test_log_lines_do_not_join_a_progress_bar(monkeypatch, capfd):
    from tqdm import tqdm

    from starbucks_retrieval.cli import CommonArguments, setup_logging

    setup_logging(CommonArguments())
    with tqdm(total=2, ncols=60, mininterval=0) as bar:
        bar.update(1)
        logging.getLogger("starbucks_retrieval.train").info("a line")
    printed = capfd.readouterr().err
    before, _, _ = printed.partition("a line")
    assert before.endswith(("\r", "\n"))


@of_train
@pytest.mark.parametrize(("words", "fused"), [(["--bf16"], False), pytest.param([], True, marks=pytest.mark.slow)])
def test_bf16_on_a_cpu_avoids_the_fused_attention(run, words, fused):
    """Its backward pass in bf16 takes several times as long as that of plain products."""
    from torch.profiler import profile

    with profile() as profiled:
        run("--max_steps", "1", "--dropout", "0", *words)
    names = {event.key for event in profiled.key_averages()}
    assert any("flash_attention" in name for name in names) == fused
