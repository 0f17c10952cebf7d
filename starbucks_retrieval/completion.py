"""`starbucks completion`: print a script, made by shtab from the stages' parsers, that completes stages, flags and values."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from starbucks_retrieval.cli import exit_command, finish, flag, parse_command
from starbucks_retrieval.cli.checks import training_flags

Shell = Literal["bash", "zsh", "fish", "tcsh"]
_EXAMPLES = (
    "starbucks completion bash > ~/.local/share/bash-completion/completions/starbucks",
    "starbucks completion zsh > ~/.zfunc/_starbucks   # fpath+=(~/.zfunc) before compinit in ~/.zshrc",
    "starbucks completion fish > ~/.config/fish/completions/starbucks.fish",
    "starbucks completion tcsh > ~/.starbucks.tcsh   # source ~/.starbucks.tcsh in ~/.tcshrc",
)
# shtab's function for bash completes only files after a flag with several values, and splits names at spaces.
_BASH_FILES = """_starbucks_files() {
  if [[ $completing_word == -* ]]; then compgen -W "${current_option_strings[*]}" -- "$completing_word"
  else compgen -f -- "$1"; fi
}"""


@dataclasses.dataclass
class CompletionArguments:
    """Which shell"""

    shell: Shell = flag(None, "the shell; also accepted as the first word", required=True)


def completion_script(shell: str) -> str:
    """Return a completion script.

    The script is static: completion starts no Python process. Torch is not imported.

    Args:
        shell: bash, zsh, fish or tcsh.
    """
    import shtab

    complete: dict[str, Any] = {**shtab.FILE, "bash": "_starbucks_files", "preamble": {"bash": _BASH_FILES}}
    root = argparse.ArgumentParser("starbucks")
    root.add_argument("--version", action="version", help="print the version")
    stages = root.add_subparsers()
    groups: dict[str, Any] = {}
    for words, summary, parser in stage_parsers():
        parent = stages if len(words) == 1 else groups[words[0]]
        if parser is None:
            groups[words[0]] = parent.add_parser(words[0], help=summary).add_subparsers()
            continue
        child = parent.add_parser(words[-1], help=summary, parents=[parser], add_help=False)
        first = {"choices": get_args(Shell)} if words == ("completion",) else {"nargs": "*"}
        child.add_argument("first", help="a configuration file, or a word accepted before the flags", **first)
        if words[0] in ("train", "pretrain"):
            for name in training_flags():
                if f"--{name}" not in child._option_string_actions:
                    child.add_argument(f"--{name}", help="of transformers.TrainingArguments")
        for action in child._actions:
            if action.nargs == "?":
                action.choices = ("true", "false")
            elif action.nargs != 0 and action.choices is None and action.type not in (int, float):
                action.complete = complete  # type: ignore[union-attr]
    return shtab.complete(root, shell) + "\n"


def stage_parsers() -> Iterator[tuple[tuple[str, ...], str, argparse.ArgumentParser | None]]:
    """Yield the words, the summary and the parser of every stage, in the order of `starbucks --help`.

    A stage with sub-commands has no parser; its sub-commands follow it, as `("store", "verify")`.
    """
    program = importlib.import_module("starbucks_retrieval.__main__")  # by name: the module is in a layer above
    for name, summary in program.STAGES.items():
        stage = program.stage_module(name)
        commands = getattr(stage, "COMMANDS", {})
        yield (name,), summary, None if commands else _parser(stage.main, [])
        for command, (about, *_) in commands.items():
            yield (name, command), about, _parser(stage.main, [command])


class _Parsing(BaseException):
    """Carries a parser out of a stage: every stage parses its flags first."""


def _parser(main: Any, argv: Sequence[str]) -> argparse.ArgumentParser:
    def leave(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise _Parsing(parser)

    parse, argparse.ArgumentParser.parse_known_args = argparse.ArgumentParser.parse_known_args, leave  # type: ignore[method-assign, assignment]
    try:
        main(argv)
    except _Parsing as parsing:
        return parsing.args[0]
    finally:
        argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]
    raise AssertionError(f"{main.__module__} parses no flags")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, print the script. Standard error stays empty, so that `eval "$(starbucks completion bash)"` is silent."""
    words = ["--shell", *argv] if argv and not argv[0].startswith("-") else argv
    arguments, common = parse_command(
        [CompletionArguments],
        words,
        "starbucks completion",
        "Print a script that lets a shell complete stages, flags and values. It is static: print it again after an upgrade.",
        _EXAMPLES,
    )
    script = completion_script(arguments.shell)
    if not common.json:
        print(script, end="", flush=True)
    finish(dataclasses.replace(common, quiet=True), "", {"shell": arguments.shell, "script": script})


if __name__ == "__main__":
    exit_command(main)
