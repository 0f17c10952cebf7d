"""The command lines that the demonstration prints, and its number of training steps."""

from __future__ import annotations

import shlex
import sys

from starbucks_retrieval.demo import LONG
from starbucks_retrieval.demo.pipeline import command, program, short_path
from starbucks_retrieval.demo.training import steps_for


def test_commands_can_be_pasted_into_a_shell(tmp_path, monkeypatch):
    line = command("encode", {"a": "x y", "b": True, "c": False, "d": None, "e": ["1", "2"], "f": 3})
    words = shlex.split(line)
    assert words[len(program()) :] == ["encode", "--a", "x y", "--b", "--e", "1", "2", "--f", "3"]
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "venv" / "bin") == "venv/bin"
    assert short_path(tmp_path.parent) == str(tmp_path.parent)


def test_a_program_outside_the_path_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert program() == ["bin/python", "-m", "starbucks_retrieval"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "starbucks").touch(mode=0o755)
    assert program() == ["bin/starbucks"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert program() == ["starbucks"]


def test_the_number_of_training_steps_follows_the_speed_within_bounds():
    speeds = [{"tokens_per_text": 80.0, "tokens_per_second": {"6:384": rate}} for rate in (1e2, 8e3, 1e9)]
    slow, usual, fast = (steps_for(LONG, speed, "6:384", 15.0) for speed in speeds)
    assert slow == LONG.min_steps
    assert LONG.min_steps < usual < LONG.max_steps
    assert fast == LONG.max_steps
