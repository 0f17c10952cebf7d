"""The words of a command line."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def flag_chunks(words: Sequence[str]) -> list[list[str]]:
    """Split a command line before every flag.

    Example:
        >>> flag_chunks(["a.yaml", "--run", "x", "y", "--json"])
        [['a.yaml'], ['--run', 'x', 'y'], ['--json']]
    """
    chunks: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not chunks:
            chunks.append([])
        chunks[-1].append(word)
    return chunks


def command(stage: str, flags: Mapping[str, Any]) -> str:
    """Return `starbucks <stage>` with these flags, as it can be typed in the current folder.

    Args:
        stage: The subcommand, such as `encode`.
        flags: Values by flag name, without dashes. True gives the flag alone, a list gives several words after it, and
            None and False leave the flag out. Absolute paths in the current folder become relative.

    Example:
        >>> command("search", {"size": "2:32", "override": True, "index": None}).partition(" search ")[2]
        '--size 2:32 --override'
    """
    words = (short_path(Path(one)) if os.path.isabs(one) else one for one in flag_words(flags))
    return shlex.join([*program(), stage, *words])


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Return flags as the words of a command line: see `command`.

    Example:
        >>> flag_words({"sizes": "2:32", "override": True, "index": None, "run": ["a", "b"]})
        ['--sizes', '2:32', '--override', '--run', 'a', 'b']
    """
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def program() -> list[str]:
    """Return the words that start `starbucks` here: its name where the shell finds it, else its path."""
    script = Path(sys.executable).with_name("starbucks")
    found = shutil.which("starbucks")
    if found and Path(found).resolve() == script.resolve():
        return ["starbucks"]
    if script.is_file():
        return [short_path(script)]
    return [short_path(Path(sys.executable)), "-m", "starbucks_retrieval"]


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside it, else the absolute path.

    Example:
        >>> short_path(Path.cwd() / "data" / "corpus.jsonl")
        'data/corpus.jsonl'
    """
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
