"""Check changed copies of this package in forks of one process, which imports torch once for all that need it.

`python -m docs.forks`, with tests/ on the path, reads lines of JSON, a folder and the words of a command: in a fork it runs
the folder's check.py, and then the command if there are words. It prints the exit status; the rest is in printed.txt.
Not a fork of the tests: threads of the libraries that they use do not survive one.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path

from attack.killing import run


def check(folder: Path, words: list[str]) -> int:
    """Run the check and the command with the package of a folder."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    runpy.run_path("check.py", run_name="__main__")
    stages = importlib.import_module("starbucks_retrieval.__main__")
    assert Path(str(stages.__file__)).is_relative_to(folder)
    if words:
        stages._main(words)
    return 0


if __name__ == "__main__":
    for line in sys.stdin:
        folder, words = json.loads(line)
        if words or "my-model" in (Path(folder) / "check.py").read_text(encoding="utf-8"):
            from transformers import BertModel  # noqa: F401 - takes seconds
        status, _ = run(partial(check, Path(folder), words), Path(folder), log=Path(folder) / "printed.txt")
        print(status, flush=True)
