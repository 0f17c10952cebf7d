"""Writing or flushing a file fails with EIO or EDQUOT: two lines and exit code 2, and the same command goes on."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from attack.commands import NAMES
from attack.faults import record
from attack.io_errors import CODES, preloaded
from conftest import slow_except

from .test_disk import goes_on
from .test_kills import disturbed


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", slow_except(["search", "mine"], ["search", "mine", "export", "store-npy"]))
def test_files_cannot_be_flushed(runs, name, code, clean, tmp_path, monkeypatch, capsys):
    fsync = os.fsync

    def fails(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    runs[name].prepare(tmp_path / "out")
    capsys.readouterr()
    assert runs[name](tmp_path / "out") == 2
    monkeypatch.undo()
    problem, remedy = capsys.readouterr().err.splitlines()[-2:]
    assert problem.startswith("error: ") and remedy.startswith("  try: ")
    assert ("Input/output error" if code == errno.EIO else "no space left") in problem
    goes_on(runs[name], tmp_path / "out", clean)


@pytest.mark.attack
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles a library that is loaded before libc")
@pytest.mark.parametrize("name", NAMES)
def test_writing_fails_at_operations(name, tmp_path):
    [found] = disturbed(name, tmp_path, 1, os.environ.get("ATTACK_ERRORS", "12"), preloaded(tmp_path))
    record("errors", name, 1, found["tried"], found["problems"], **found["outcomes"])
    assert found["tried"] and found["problems"] == []
