"""Both stages that train: the same command again after a kill at any moment, and one run per folder."""

from __future__ import annotations

import json
import os
import socket

import pytest
import torch
from conftest import slow_except
from safetensors.torch import load_file

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import FolderLock
from starbucks_retrieval.pretrain.__main__ import main as pretrain_main
from starbucks_retrieval.pretrain.trainer import read_text_position
from starbucks_retrieval.train.__main__ import main as train_main
from starbucks_retrieval.trainer import CACHE, LOCK, check_state, complete_checkpoints


@pytest.fixture(params=["train", "pretrain"])
def stage(request, tiny_bert, tmp_path):
    """Runs one of the two stages for two steps with a checkpoint after each."""
    rows = [
        {"query": f"w{i}", "positive": f"w{i} w{i + 1}", "text": " ".join(f"w{i + j}" for j in range(12))}
        for i in range(8)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = "--train_group_size 1" if request.param == "train" else "--max_length 32 --text_column text"

    def run(output, *words):
        fixed = f"--model_name_or_path {tiny_bert} --dataset_path {tmp_path}/data.jsonl --output_dir {output} {flags}"
        steps = "--max_steps 2 --per_device_train_batch_size 2 --save_steps 1 --use_cpu --quiet"
        main = train_main if request.param == "train" else pretrain_main
        return run_command(main, [*fixed.split(), *steps.split(), *words])

    return run


# Both stages share the code of what follows.
of_train = pytest.mark.parametrize("stage", slow_except(["train"], ["train", "pretrain"]), indirect=True)

RESUME = ("--resume_from_checkpoint", "true")


def same(one, other):
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


MOMENTS = ("nothing", "half a file", "no state", "half a state")


@pytest.mark.parametrize("cut", slow_except(MOMENTS[3:], MOMENTS))
@of_train
def test_a_killed_run_resumes_at_any_moment_before_its_first_checkpoint(stage, tmp_path, cut):
    whole = tmp_path / "whole"
    assert stage(whole, *RESUME) == 0  # there is no such folder yet
    files = sorted(path for path in (whole / "checkpoint-1").iterdir() if path.is_file())
    folder = tmp_path / "cut"
    first = folder / "checkpoint-1"
    first.mkdir(parents=True)
    (folder / LOCK).write_text("process 1 on elsewhere\n")
    (folder / "run.json").write_text("{")
    (folder / f"{CACHE}0").mkdir()
    (folder / f"{CACHE}0" / "rows-0.arrow").write_bytes(b"half")
    if cut == "nothing":
        first.rmdir()
    elif cut == "half a file":
        content = (whole / "checkpoint-1" / "model.safetensors").read_bytes()
        (first / "model.safetensors").write_bytes(content[: len(content) // 2])
    else:
        for file in files:
            if file.name != "trainer_state.json":
                (first / file.name).write_bytes(file.read_bytes())
        if cut == "half a state":
            state = (whole / "checkpoint-1" / "trainer_state.json").read_bytes()
            (first / "trainer_state.json").write_bytes(state[: len(state) // 2])
    assert stage(folder, *RESUME) == 0
    assert same(whole, folder)
    assert not (folder / LOCK).exists()


@of_train
def test_the_same_command_works_after_a_kill_while_the_configuration_is_written(stage, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".run.json.0123456789ab.tmp").write_text("{")
    assert stage(tmp_path / "m") == 0
    assert not list((tmp_path / "m").glob(".run.json*"))


@of_train
def test_a_second_run_into_a_folder_is_refused_at_once(stage, tmp_path, capsys):
    (tmp_path / "m").mkdir()
    lock = FolderLock(tmp_path / "m", LOCK)
    for words in ((), RESUME, ("--overwrite_output_dir",)):
        assert stage(tmp_path / "m", *words) == 2
        what, hint = capsys.readouterr().err.splitlines()
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        assert what == f"error: another process is writing {tmp_path / 'm'}: {holder}" and hint.startswith(
            "  try: wait"
        )
        assert [path.name for path in (tmp_path / "m").iterdir()] == [LOCK]
    assert stage(tmp_path / "m", "--dry_run") == 0
    lock.release()
    assert stage(tmp_path / "m") == 0


@of_train
def test_the_folder_is_locked_during_a_run(stage, tmp_path, monkeypatch):
    from transformers.trainer_callback import DefaultFlowCallback

    def second(*_, **__):
        with pytest.raises(UserError, match="another process is writing"):
            FolderLock(tmp_path / "m", LOCK)
        held.append(True)

    held = []
    monkeypatch.setattr(DefaultFlowCallback, "on_train_begin", second, raising=False)
    monkeypatch.setattr(DefaultFlowCallback, "on_train_end", second, raising=False)
    assert stage(tmp_path / "m") == 0
    assert held == [True, True]


@pytest.mark.parametrize("values", [{"save_steps": "2"}, {"logging_steps": 0}, {"global_step": -1}])
def test_a_checkpoint_whose_state_transformers_would_fail_on_is_none(tmp_path, values, caplog):
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(
        json.dumps({"global_step": 1, "logging_steps": 1.0})
    )  # as transformers writes it
    assert check_state(checkpoint) == 1 and complete_checkpoints(tmp_path) == [checkpoint]
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 1} | values))
    with pytest.raises(UserError, match=r"trainer_state.json is damaged: (save_steps|logging_steps|global_step) is"):
        check_state(checkpoint)
    assert complete_checkpoints(tmp_path) == [] and "it is passed over" in caplog.text


@pytest.mark.parametrize("state", [[1, 2], [-1, 0, 0, -1], [1, 0, 2**63, 4], ["a", 1, 2]])
def test_a_damaged_position_in_the_text_is_refused(tmp_path, state):
    path = tmp_path / "text-position-0.json"
    path.write_text(json.dumps({"state": [3, 0, 1, -1]}))
    assert read_text_position(tmp_path, 0)["state"] == [3, 0, 1, -1]
    path.write_text(json.dumps({"state": state}))
    with pytest.raises(UserError, match=r"text-position-0.json"):
        read_text_position(tmp_path, 0)
