"""Run the blocks of one page in a folder, one after the other."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from docs.pages import ROOT, Block
from docs.samples import Samples

from starbucks_retrieval.__main__ import _main as starbucks
from starbucks_retrieval.cli import run_command

_WRITES = ("--output_dir", "--encode_output_path", "--output_path", "--save_ranking_to", "--output")
_TRAINS = ("starbucks train", "starbucks pretrain")


def to_run(block: Block) -> bool:
    """Whether a block is a file to write or a program to run, and has no comment `not run`."""
    if block.comment and block.comment[0] == "not run":
        return False
    if (block.title or "").startswith("check: "):  # test_contributing runs these
        return False
    return block.title is not None or block.language in ("bash", "python")


class PageRun:
    """A folder in which blocks run. `max_steps` shortens training; samples that a block names are copied into it."""

    def __init__(
        self, folder: Path, samples: Samples | None, modules: Path | None = None, max_steps: int | None = None
    ) -> None:
        self.folder = folder
        self._samples = samples
        self._max_steps = max_steps
        self._copied: set[str] = set()
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        before = os.environ.get("PATH", "")
        path = [str(modules)] if modules else []
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{before}",
            "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
        }

    def run(self, block: Block) -> None:
        """Run a block, or write it to the file in its title."""
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            return
        self._copy_samples(block.text)
        if block.language == "python":
            program = "\n" * block.line + block.text  # so that a traceback names the line of the page
            exec(compile(program, str(ROOT / block.page), "exec"), self._namespace)  # noqa: S102
            return
        for command in _commands(block.text):
            self._remove_outputs(command)
            self.run_command(command, str(block))

    def run_command(self, command: str, where: str) -> None:
        """Run one command line; commands of this package run without a new interpreter."""
        words = _words(command)
        if words is None or words[0] != "starbucks":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self.folder, env=self._environment, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, f"{where}: {command}\n{done.stdout}{done.stderr}"
            return
        if command.startswith(_TRAINS) and self._max_steps:
            words += ["--max_steps", str(self._max_steps), "--per_device_train_batch_size", "4"]
        assert run_command(starbucks, words[1:]) == 0, f"{where}: {command}"

    def _copy_samples(self, text: str) -> None:
        for name in self._samples.names if self._samples else ():
            if re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", text) and not (self.folder / name).exists():
                self._samples.copy_to(name, self.folder)
                self._copied.add(name)

    def _remove_outputs(self, command: str) -> None:
        """Remove samples that a command will write."""
        words = _words(command) or []
        for flag, value in pairwise(words):
            for name in [name for name in self._copied if flag in _WRITES and name == value]:
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                self._copied.discard(name)


def _commands(text: str) -> list[str]:
    """Return the logical lines of a block; a block with a loop or a here-document is one command."""
    if re.search(r"^\s*(for|while|if|case)\b|<<", text, re.MULTILINE):
        return [text]
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _words(command: str) -> list[str] | None:
    """Return the words of a command, or None if it needs a shell."""
    pieces = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    pieces.whitespace_split = True
    words = list(pieces)
    if any(set(word) <= set("|&;<>()") for word in words) or re.search(r"\$|(?<!')\*(?![^']*')", command):
        return None
    return words


@pytest.fixture(scope="session")
def samples(tmp_path_factory) -> Samples:
    """Sample files of the session."""

    def run(command: str, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert run_command(starbucks, shlex.split(command)[1:]) == 0

    return Samples(tmp_path_factory.mktemp("samples"), run)


@pytest.fixture
def working_dir(tmp_path, monkeypatch) -> Path:
    """An empty current folder, and an empty standard input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path
