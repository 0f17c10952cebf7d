"""Commands that are killed at any operation on files, and run again: the same files, nothing left, nothing refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from attack.commands import NAMES, PAIRS
from attack.faults import record

FAST = ("mine", "store-npy")
KILLS = os.environ.get("ATTACK_KILLS", "120")  # of a command; a tenth of one with two processes


def disturbed(names: str, folder: Path, seed: int, wanted: str, errors: Mapping[str, str] | None = None) -> list[dict]:
    """Disturb commands in a process of their own: kill them or, with the environment of `preloaded`, let them fail."""
    words = [sys.executable, "-m", "attack.stages", names, str(folder), str(seed), wanted]
    paths = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    # Threads do not survive a fork.
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(errors or {})}
    done = subprocess.run(words + ["errors"] * bool(errors), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(names.split(",")) :]]


@pytest.mark.parametrize(
    ("names", "moments", "least"),
    [(FAST[:1], "every-3", 2), pytest.param(FAST, "every-1", 6, marks=pytest.mark.slow)],
    ids=["every-3", "every-1"],
)
def test_killed_at_operations(names, moments, least, tmp_path):
    found = disturbed(",".join(names), tmp_path, 0, moments)
    assert len(found) == len(names) and all(one["tried"] >= least and one["problems"] == [] for one in found), found


@pytest.mark.attack
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("stage", NAMES)
def test_killed_twice(stage, seed, tmp_path):
    [found] = disturbed(stage, tmp_path, seed, KILLS)
    record("kills", stage, seed, found["tried"], found["problems"])
    assert found["tried"] and found["problems"] == []


@pytest.mark.attack
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("stage", PAIRS)
def test_one_of_two_processes_is_killed(stage, tmp_path):
    [found] = disturbed(stage, tmp_path, 1, str(max(1, int(KILLS) // 10)))
    record("processes", stage, 1, found["tried"], found["problems"])
    assert found["tried"] and found["problems"] == []
