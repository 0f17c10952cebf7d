"""Training on a CUDA device."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    ("flags", "tolerance"), [("", 1e-3), ("--bf16", 5e-2), ("--fp16", 5e-2), ("--bf16 --grad_cache", 5e-2)]
)
def test_a_gpu_follows_the_cpu(tiny_bert, tmp_path, flags, tolerance):
    rng = np.random.default_rng(0)

    def text():
        return " ".join(f"w{i}" for i in rng.integers(0, 95, 6))

    rows = [{"query": text(), "positive": text(), "negative": [text()]} for _ in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed = (
        "--train_group_size 2 --max_steps 3 --per_device_train_batch_size 8 --learning_rate 1e-3 --dropout 0 --quiet"
    )
    fixed += " --logging_steps 1 --save_strategy no"
    losses = []
    for name, more in (("cpu", "--use_cpu true"), ("gpu", f"--use_cpu false {flags}")):
        words = f"--model_name_or_path {tiny_bert} --dataset_path {tmp_path}/rows.jsonl --output_dir {tmp_path}/{name}"
        assert run_command(main, f"{words} {fixed} {more}".split()) == 0
        history = json.loads((tmp_path / name / "training.json").read_text())["history"]
        losses.append([entry["loss"] for entry in history if "loss" in entry])
    np.testing.assert_allclose(losses[0], losses[1], rtol=tolerance)
