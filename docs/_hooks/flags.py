"""The flags of every stage, asked of the parser that its own door builds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from starbucks_retrieval import cli
from starbucks_retrieval.completion import stage_parsers


@dataclass(frozen=True)
class Door:
    """What `starbucks <stage>`, or a sub-command of it, parses."""

    name: str
    parser: argparse.ArgumentParser

    @property
    def groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Title and flags of each group; --help is left out."""
        for group in self.parser._action_groups:
            actions = [action for action in group._group_actions if action.dest != "help"]
            if actions:
                yield group.title or "", actions

    @property
    def flags(self) -> set[str]:
        """The names of all its flags, such as `--sizes`."""
        return {name for _, actions in self.groups for action in actions for name in action.option_strings}


def doors() -> Iterator[Door]:
    """Every door, in the order of `starbucks --help`; one for each sub-command of a stage that has some."""
    for words, _, parser in stage_parsers():
        if parser is not None:
            yield Door(" ".join(words), parser)


def as_markdown(door: Door, common: bool) -> str:
    """A section of flags; those that every door has only where `common`."""
    lines = [f"## starbucks {door.name}", "", _cell(door.parser.description or ""), ""]
    for title, actions in door.groups:
        if title == cli.CommonArguments.__doc__.rstrip(".") and not common:  # type: ignore[union-attr]
            continue
        lines += [f"**{title}**", "", "| flag | value | meaning |", "|---|---|---|"]
        lines += [
            f"| `{action.option_strings[0]}` | {_value(action)} | {_cell(action.help or '')} |" for action in actions
        ]
        lines.append("")
    if door.parser.epilog:
        lines += _examples(door.parser.epilog)
    return "\n".join(lines)


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return " ".join(f"`{choice}`" for choice in action.choices)
    kind = str(action.metavar or "").lower().replace("|", " or ")
    return f"{kind} …" if action.nargs == "+" else kind


def _cell(text: str) -> str:
    # Help texts are plain text: nothing in them is meant as markdown or HTML.
    for sign in "\\`*_[]<>|$~":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>|" else {"<": "&lt;", ">": "&gt;", "|": "&#124;"}[sign])
    return " ".join(text.replace("%%", "%").split())


def _examples(epilog: str) -> list[str]:
    """Command lines as a block; any other epilogue as a paragraph."""
    commands = [" ".join(part.split()) for part in epilog.split("  |  ")]
    if all(command.startswith("starbucks ") for command in commands):
        return ["```text", *commands, "```", ""]
    return [_cell(epilog), ""]
