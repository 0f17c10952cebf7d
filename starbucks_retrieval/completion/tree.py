"""Every stage with its flags, as its door's parser has them."""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from starbucks_retrieval import cli

log = logging.getLogger(__name__)

# Doors that also take every flag of transformers' TrainingArguments.
_TRAINING = ("pretrain", "train")
_HELP = "show what a stage does and its flags"

Kind = Literal["file", "choice", "switch", "number"]


@dataclass(frozen=True)
class Flag:
    """One flag: its name without dashes, its help, and what may follow it.

    `kind` says what kind of value: a file (any text may be one), one of `choices`, nothing or true or false (switch), or
    a number; `many` whether several may follow.
    """

    name: str
    help: str
    kind: Kind
    choices: tuple[str, ...] = ()
    many: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage, or a sub-command of one (`words` are two then), what it does, and its flags."""

    words: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]


def all_stages(stages: Mapping[str, str], transformers: bool = True) -> list[Stage]:
    """The stages named, in their order, with what each does; a stage with sub-commands is followed by those.

    With `transformers`, stages that train have its TrainingArguments' flags too, which takes importing it.
    """
    extra = _training_flags() if transformers else ()
    found = []
    for name, line in stages.items():
        door = importlib.import_module(f"starbucks_retrieval.{name}.__main__")
        commands = getattr(door, "COMMANDS", {})
        flags = () if commands else _flags(_parser(door.main, []))
        if name in _TRAINING:
            flags += tuple(one for one in extra if one.name not in {own.name for own in flags})
        found.append(Stage((name,), line, flags))
        for command, (about, *_) in commands.items():
            found.append(Stage((name, command), about, _flags(_parser(door.main, [command]))))
    return found


class _Built(BaseException):
    """Carries a parser out of a door before it parses anything."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser that a door builds: doors parse before they do anything else."""
    with _stopping_doors():
        try:
            main(argv)
        except _Built as built:
            return built.parser
    raise AssertionError(f"{main.__module__} built no parser")


@contextmanager
def _stopping_doors() -> Iterator[None]:
    build = cli.parser_for

    def stop(*arguments: Any, **named: Any) -> argparse.ArgumentParser:
        raise _Built(build(*arguments, **named))

    cli.parser_for = stop
    try:
        yield
    finally:
        cli.parser_for = build


def _flags(parser: argparse.ArgumentParser) -> tuple[Flag, ...]:
    return tuple(_flag(action) for action in parser._actions)


def _flag(action: argparse.Action) -> Flag:
    name = next(option for option in action.option_strings if option.startswith("--"))[2:]
    many = action.nargs in ("+", "*") or isinstance(action.nargs, int)
    if name == "help":
        return Flag(name, _HELP, "switch")
    told = " ".join((action.help or "").replace("%%", "%").split())
    if action.nargs == "?" or action.nargs == 0:
        return Flag(name, told, "switch")
    if action.choices:
        return Flag(name, told, "choice", tuple(map(str, action.choices)), many)
    return Flag(name, told, "number" if action.type in (int, float) else "file", (), many)


def _training_flags() -> tuple[Flag, ...]:
    """The flags of transformers' TrainingArguments; none where it cannot be imported."""
    try:
        from transformers import HfArgumentParser, TrainingArguments
    except Exception as error:  # whatever a broken installation raises
        log.warning("without the flags of transformers, which cannot be imported: %s", error)
        return ()
    found = {}
    for action in HfArgumentParser(TrainingArguments)._actions:
        if action.option_strings and action.dest not in ("help", argparse.SUPPRESS):
            one = _flag(action)
            # The first sentence tells enough beside a flag; `--no_…` twins and dashes are spellings of others.
            if "-" not in one.name and not (one.name.startswith("no_") and one.name[3:] in found):
                found[one.name] = Flag(one.name, one.help.split(". ")[0], one.kind, one.choices, one.many)
    return tuple(found.values())
