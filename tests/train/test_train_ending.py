"""The end of train and pretrain: weights, record and card are written whatever fails beside them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import slow_except

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.pretrain.__main__ import main as pretrain_main
from starbucks_retrieval.train.__main__ import main as train_main


@pytest.fixture(params=["train", "pretrain"])
def stage(request, tiny_bert, tmp_path):
    """Runs one of the two stages for two steps, with more flags, into the folder m."""
    if request.param == "train":
        rows = [{"query": f"w{i}", "positive": f"w{i} w{i + 1}"} for i in range(8)]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = "--train_group_size 1"
    else:
        lines = (" ".join(f"w{i + j}" for j in range(12)) for i in range(8))
        (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        flags = "--max_length 32"

    def run(*words):
        fixed = (
            f"--model_name_or_path {tiny_bert} --dataset_path {tmp_path}/data.jsonl --output_dir {tmp_path}/m {flags}"
        )
        steps = "--max_steps 2 --per_device_train_batch_size 2 --logging_steps 1 --save_strategy no --use_cpu"
        main = train_main if request.param == "train" else pretrain_main
        return run_command(main, [*fixed.split(), *steps.split(), *words])

    run.name = request.param
    package = f"starbucks_retrieval.{request.param}"
    pretrains = request.param == "pretrain"
    run.card_writer = f"{package}.{'trainer' if pretrains else 'save'}.write_card"
    run.weights_writer = f"{package}.trainer.{'save_backbone' if pretrains else 'save_model'}"
    return run


# Both stages share the code that ends a run.
of_train = pytest.mark.parametrize("stage", slow_except(["train"], ["train", "pretrain"]), indirect=True)


def whole(folder):
    """Weights that load, and a record of both steps."""
    NestedEncoder.from_pretrained(folder)
    history = json.loads((folder / "training.json").read_text())["history"]
    return [entry["step"] for entry in history if "loss" in entry] == [1, 2]


def uploaded(folder, ignore_patterns):
    """Paths that the hub's client would upload."""
    from huggingface_hub.utils import filter_repo_objects

    paths = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
    return list(filter_repo_objects(paths, ignore_patterns=ignore_patterns))


def private(names):
    """The lock, and files with training texts, among paths in an output folder."""
    return [name for name in names if "lock" in name or "data-cache" in name]


def fail(*_, **__):
    raise KeyError("chain")


@of_train
def test_a_card_that_fails_loses_nothing(stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(stage.card_writer, fail)
    assert stage() == 0
    assert whole(tmp_path / "m")
    printed = capfd.readouterr().err
    assert (
        f"{tmp_path}/m/README.md was not written: KeyError: 'chain'\n  try: " in printed and "Traceback" not in printed
    )


@of_train
def test_a_record_that_fails_loses_neither_weights_nor_card(stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(f"starbucks_retrieval.{stage.name}.api.describe", fail)
    assert stage() == 0
    NestedEncoder.from_pretrained(tmp_path / "m")
    assert (tmp_path / "m" / "README.md").read_text().endswith("\n")
    assert "training.json was not written: KeyError" in capfd.readouterr().err


@of_train
def test_weights_that_cannot_be_written_leave_record_and_card(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(stage.weights_writer, fail)
    with pytest.raises(KeyError):
        stage()
    assert (tmp_path / "m" / "training.json").exists() and (tmp_path / "m" / "README.md").exists()


@of_train
def test_a_push_comes_last_and_may_fail(stage, tmp_path, monkeypatch, capfd):
    from huggingface_hub import HfApi
    from transformers import Trainer

    found = []

    def upload(*_, ignore_patterns, **__):
        found.extend(uploaded(tmp_path / "m", ignore_patterns))
        raise ConnectionError("no network")

    monkeypatch.setenv("HF_TOKEN", "hf_a")
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda self, **_: setattr(self, "hub_model_id", "me/m"))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert stage("--push_to_hub", "--hub_model_id", "me/m") == 0
    assert {"model.safetensors", "training.json", "README.md"} <= set(found) and not private(found)
    assert whole(tmp_path / "m") and "starbucks" in (tmp_path / "m" / "README.md").read_text()
    printed = capfd.readouterr().err
    assert "was not pushed: ConnectionError: no network" in printed and f"hf upload me/m {tmp_path}/m" in printed


def test_a_push_without_a_token_is_refused_before_training(stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert stage("--push_to_hub", "--hub_model_id", "me/m") == 2
    error = capfd.readouterr().err
    assert "error: --push_to_hub needs a token" in error and "\n  try: run `hf auth login`" in error
    assert not (tmp_path / "m").exists()


def test_a_hub_that_refuses_the_repository_ends_the_run_before_training(stage, tmp_path, monkeypatch, capfd):
    from transformers import Trainer

    def refuse(*_, **__):
        raise OSError("403 Forbidden")

    monkeypatch.setenv("HF_TOKEN", "hf_a")
    monkeypatch.setattr(Trainer, "init_hf_repo", refuse)
    assert stage("--push_to_hub", "--hub_model_id", "me/m") == 2
    error = capfd.readouterr().err
    assert (
        "error: no repository for --push_to_hub: OSError: 403 Forbidden\n  try: " in error and "Traceback" not in error
    )
    assert not (tmp_path / "m" / "model.safetensors").exists()


@of_train
def test_an_upload_of_a_checkpoint_leaves_out_training_data_and_the_lock(stage, tmp_path, monkeypatch):
    from huggingface_hub import HfApi
    from transformers import Trainer

    found = []

    def init_hf_repo(trainer, **_):
        trainer.hub_model_id, trainer.push_in_progress = "me/m", None

    def upload(*_, folder_path, ignore_patterns, **__):
        assert private(path.name for path in (tmp_path / "m").iterdir()), "nothing to leave out: the test is void"
        found.append(uploaded(folder_path, ignore_patterns))
        return SimpleNamespace(done=lambda: True)

    monkeypatch.setenv("HF_TOKEN", "hf_a")
    monkeypatch.setattr(Trainer, "init_hf_repo", init_hf_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr("transformers.trainer.upload_folder", partial(upload, None), raising=False)  # transformers 5.0
    assert stage("--push_to_hub", "--hub_strategy", "every_save", "--save_strategy", "steps", "--save_steps", "1") == 0
    assert len(found) == 3 and all("model.safetensors" in names for names in found)
    assert not [name for names in found for name in private(names)]


@of_train
def test_an_error_after_the_last_step_is_raised_once_the_model_is_written(stage, tmp_path, monkeypatch):
    from transformers.trainer_callback import DefaultFlowCallback

    def report(self, args, state, control, **_):
        if state.global_step == 2:
            raise ConnectionError("the tracker is gone")

    monkeypatch.setattr(DefaultFlowCallback, "on_log", report, raising=False)
    with pytest.raises(ConnectionError):
        stage()
    assert whole(tmp_path / "m") and (tmp_path / "m" / "README.md").exists()


@of_train
def test_an_error_before_the_last_step_leaves_no_model(stage, tmp_path, monkeypatch):
    from transformers.trainer_callback import DefaultFlowCallback

    monkeypatch.setattr(DefaultFlowCallback, "on_log", fail, raising=False)
    with pytest.raises(KeyError):
        stage()
    assert not (tmp_path / "m" / "model.safetensors").exists() and not (tmp_path / "m" / "training.json").exists()


@of_train
def test_the_card_names_no_base_model_that_nobody_can_find(stage, tmp_path):
    assert stage("--quiet") == 0
    card = (tmp_path / "m" / "README.md").read_text()
    assert "base_model" not in card and "Base model: a local folder, `tiny-bert" in card
