"""The command line that does what the demonstration just did."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def command(stage: str, flags: dict[str, Any], more: Sequence[str] = ()) -> str:
    """`starbucks <stage>` with these flags, as it can be typed in the current folder."""
    words = [*program(), stage]
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join([*words, *more])


def program() -> list[str]:
    """How this installation's `starbucks` is called here: by its name where the shell finds it, else by its path."""
    script = Path(sys.executable).with_name("starbucks")
    found = shutil.which("starbucks")
    if found and Path(found).resolve() == script.resolve():
        return ["starbucks"]
    if script.is_file():
        return [short_path(script)]
    return [short_path(Path(sys.executable)), "-m", "starbucks_retrieval"]


def short_path(path: Path) -> str:
    """A path relative to the current folder where it lies below it, else as it is."""
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)
