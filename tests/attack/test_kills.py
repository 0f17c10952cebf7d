"""Commands that are killed at any operation on files, and run again: the same files, nothing left, nothing refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack.commands import NAMES

FAST = ("store-npy", "mine")


def killed(stage: str, folder: Path, seed: int, wanted: str) -> dict:
    words = [sys.executable, "-m", "attack.stages", stage, str(folder), str(seed), wanted]
    paths = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    # Threads do not survive a fork.
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("stage", FAST)
def test_killed_at_every_operation(stage, tmp_path):
    found = killed(stage, tmp_path, 0, "all")
    assert found["tried"] > 5 and found["problems"] == []


@pytest.mark.attack
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("stage", NAMES)
def test_killed_twice(stage, seed, tmp_path):
    found = killed(stage, tmp_path, seed, "120")
    assert found["tried"] > 50 and found["problems"] == []
