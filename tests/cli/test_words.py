"""Command lines that a command prints."""

from __future__ import annotations

import shlex
import sys

from starbucks_retrieval.cli.words import command, program, short_path


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
