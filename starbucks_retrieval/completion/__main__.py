"""starbucks completion: a script that lets a shell complete stages, flags and values."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_door, setup_logging

_EPILOG = (
    "starbucks completion bash > ~/.local/share/bash-completion/completions/starbucks    |    "
    'eval "$(starbucks completion bash)" in ~/.bashrc    |    '
    "starbucks completion fish > ~/.config/fish/completions/starbucks.fish    |    "
    "starbucks completion zsh > ~/.zfunc/_starbucks, with fpath+=(~/.zfunc) before compinit in ~/.zshrc"
)


@dataclass
class CompletionArguments:
    """Which shell"""

    shell: Literal["bash", "zsh", "fish"] = flag(None, "the shell (may stand first, unflagged)", required=True)


def main(argv: Sequence[str]) -> None:
    """Parse, print the script."""
    words = ["--shell", *argv] if argv and not argv[0].startswith("-") else argv
    (arguments, common), _ = parse_flags(
        [CompletionArguments, CommonArguments],
        words,
        "starbucks completion",
        "Print a script that lets a shell complete stages, flags and values. It is static: print it again after an upgrade.",
        _EPILOG,
    )
    setup_logging(common)
    from starbucks_retrieval.completion.scripts import PLACES, script
    from starbucks_retrieval.completion.tree import all_stages

    # By its name, because the list of stages lies above every stage.
    stages = all_stages(importlib.import_module("starbucks_retrieval.__main__").STAGES)
    text = script(arguments.shell, stages)
    flags = sum(len(stage.flags) for stage in stages)
    figures = {"shell": arguments.shell, "stages": len(stages), "flags": flags, "script": text}
    if not common.json:
        print(text, end="", flush=True)
    if common.json or sys.stdout.isatty():  # a shell that reads the script when it starts must show nothing
        place = PLACES[arguments.shell]
        finish(common, f"{len(stages)} stages and sub-commands with {flags} flags; keep it in {place}", figures)


if __name__ == "__main__":
    sys.exit(run_door(main))
