"""What the package writes may be read by whom the umask lets."""

from __future__ import annotations

import json
import os

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.export.__main__ import main as export
from starbucks_retrieval.files import umask_permissions
from starbucks_retrieval.pretrain.__main__ import main as pretrain
from starbucks_retrieval.train.__main__ import main as train


@pytest.fixture(autouse=True)
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def private(folder):
    """Files and folders that have other permissions than those of the umask."""
    found = {path: path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    assert found
    return {str(path): oct(mode) for path, mode in found.items() if mode != (0o750 if path.is_dir() else 0o640)}


@pytest.mark.slow
def test_backbone_model_checkpoints_adapter_and_export(tiny_bert, tmp_path):
    rows = [{"query": f"w{i}", "positive": f"w{i} w{i + 1}", "text": f"w{i} w1 w2 w3 w4 w5"} for i in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed = (
        f"--dataset_path {tmp_path}/data.jsonl --max_steps 1 --save_steps 1 --per_device_train_batch_size 2 --use_cpu"
    )
    words = f"--model_name_or_path {tiny_bert} --output_dir {tmp_path}/backbone --text_column text {fixed}"
    assert run_command(pretrain, words.split()) == 0
    more = "--train_group_size 1 --sizes 2:8,4:32 --lora"
    assert (
        run_command(train, f"--model_name_or_path {tmp_path}/backbone --output_dir {tmp_path}/m {more} {fixed}".split())
        == 0
    )
    for to in ("sentence-transformers", "transformers"):
        words = f"--model_name_or_path {tmp_path}/m --size 2:8 --to {to} --output_dir {tmp_path}/{to}"
        assert run_command(export, words.split()) == 0
    names = {path.name for path in (tmp_path / "m").rglob("*.safetensors")}
    assert names == {"model.safetensors", "adapter.safetensors"}
    assert private(tmp_path) == {}


def test_what_was_there_before_keeps_its_permissions(tmp_path):
    for name in ("mine", "replaced"):
        (tmp_path / name).write_text("1")
        (tmp_path / name).chmod(0o600)
    with umask_permissions(tmp_path):
        for name in ("new", "replaced"):
            (tmp_path / "temporary").write_text("2")
            (tmp_path / "temporary").chmod(0o600)
            (tmp_path / "temporary").rename(tmp_path / name)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert modes == {"mine": "0o600", "replaced": "0o640", "new": "0o640"}
