"""Which shells there are scripts for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starbucks_retrieval.completion.bash import bash
from starbucks_retrieval.completion.fish import fish
from starbucks_retrieval.completion.tree import Stage
from starbucks_retrieval.completion.zsh import zsh

SHELLS: dict[str, Callable[[Sequence[Stage]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}

# Where a shell looks for scripts by itself.
PLACES = {
    "bash": "~/.local/share/bash-completion/completions/starbucks",
    "zsh": "~/.zfunc/_starbucks",
    "fish": "~/.config/fish/completions/starbucks.fish",
}


def script(shell: str, stages: Sequence[Stage]) -> str:
    """The script for a shell, static: completing starts no Python."""
    return SHELLS[shell](stages)
