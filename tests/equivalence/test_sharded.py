"""Weights, gradients or optimiser states spread over processes: same trajectory, same model folder."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import save_model
from safetensors.torch import load_file

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "examples" / "msmarco" / "configs"
FLAGS = (
    "--model_name_or_path bert --dataset_path rows.jsonl --train_group_size 3 --max_steps 4 --learning_rate 1e-3 "
    "--warmup_steps 0 --logging_steps 1 --save_steps 2 --dropout 0 --sizes 1:8,2:16,4:32 --quiet --overwrite_output_dir "
    "--grad_cache"
)
# accelerate offers FSDP to accelerators only; on a CPU it has to be told that gloo's processes are such.
ON_CPU = """
import sys, types
import accelerate.state as state
members = {member.name: member for member in state.DistributedType}
state.DistributedType = types.SimpleNamespace(**members | {"MULTI_HPU": state.DistributedType.MULTI_CPU})
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train import trainer
from starbucks_retrieval.train.__main__ import main
compute_loss = trainer.StarbucksTrainer.compute_loss
def spy(self, *arguments, **keywords):
    print("wrapped as", type(next(self.model.parameters())).__name__, file=sys.stderr)
    return compute_loss(self, *arguments, **keywords)
trainer.StarbucksTrainer.compute_loss = spy
sys.exit(run_command(main))
"""
KINDS = {
    "zero1": f"--deepspeed {CONFIGS}/zero1.json",
    "zero2": f"--deepspeed {CONFIGS}/zero2.json",
    "zero3": f"--deepspeed {CONFIGS}/zero3.json",
    "fsdp": f"--fsdp --fsdp_config {CONFIGS}/fsdp.json",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    save_model(folder / "bert")
    rng = np.random.default_rng(0)

    def text():
        return " ".join(f"w{i}" for i in rng.integers(0, 95, 6))

    with open(folder / "rows.jsonl", "w") as file:
        for _ in range(32):
            file.write(json.dumps({"query": text(), "positive": text(), "negative": [text() for _ in range(3)]}) + "\n")
    (folder / "on_cpu.py").write_text(ON_CPU)
    one_process(folder, "one")
    return folder


def one_process(folder, output, more=""):
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run_command(main, f"{FLAGS} --output_dir {output} --per_device_train_batch_size 8 {more}".split()) == 0
    finally:
        os.chdir(before)


def torchrun(folder, kind, more=""):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = ["on_cpu.py"] if kind == "fsdp" else ["-m", "starbucks_retrieval.train"]
    flags = f"{FLAGS} --output_dir {kind} {KINDS[kind]} --per_device_train_batch_size 4 {more}".split()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launcher, *start, *flags], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def trajectory(output):
    history = json.loads((output / "training.json").read_text())["history"]
    return np.array([(entry["loss"], entry["grad_norm"]) for entry in history if "grad_norm" in entry])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_processes_follow_one(folder, kind):
    if kind != "fsdp" and not importlib.util.find_spec("deepspeed"):
        pytest.skip("needs deepspeed: pip install 'starbucks-retrieval[deepspeed]'")
    printed = torchrun(folder, kind)
    np.testing.assert_allclose(trajectory(folder / kind), trajectory(folder / "one"), rtol=2e-3)
    one, many = (load_file(folder / name / "model.safetensors") for name in ("one", kind))
    assert {key: (value.shape, value.dtype) for key, value in one.items()} == {
        key: (value.shape, value.dtype) for key, value in many.items()
    }
    for key in one:
        np.testing.assert_allclose(one[key], many[key], atol=2e-3, err_msg=key)
    cards = [re.findall(r"\| \d+:\d+ .*", (folder / name / "README.md").read_text()) for name in ("one", kind)]
    assert cards[0] == cards[1] and len(cards[0]) == 3
    if kind == "fsdp":
        assert "wrapped as DTensor" in printed


@pytest.mark.slow
def test_fsdp_resumes_where_it_stopped(folder):
    if not (folder / "fsdp").is_dir():
        torchrun(folder, "fsdp")
    before = trajectory(folder / "fsdp")
    torchrun(folder, "fsdp", "--resume_from_checkpoint fsdp/checkpoint-2")
    np.testing.assert_allclose(trajectory(folder / "fsdp")[-2:], before[-2:], rtol=1e-4)


@pytest.mark.slow
def test_fsdp_trains_and_saves_maps_as_one_process_does(folder):
    one_process(folder, "one-maps", "--projections fit")
    torchrun(folder, "fsdp", "--projections fit --output_dir fsdp-maps")
    np.testing.assert_allclose(trajectory(folder / "fsdp-maps"), trajectory(folder / "one-maps"), rtol=2e-3)
    one, many = (load_file(folder / name / "projections.safetensors") for name in ("one-maps", "fsdp-maps"))
    assert one.keys() == many.keys()
    for key in one:
        np.testing.assert_allclose(one[key], many[key], atol=2e-3, err_msg=key)
