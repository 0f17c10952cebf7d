"""The flags of every command, read from its own parser."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from starbucks_retrieval import cli
from starbucks_retrieval.completion import stage_parsers

COMMON = (cli.CommonArguments.__doc__ or "").rstrip(".")
_COMMON_LINK = (
    "`--seed`, `--log_level`, `--quiet` and `--json` are [flags of every command](../flags.md#flags-of-every-command)."
)


@dataclass(frozen=True)
class Command:
    """The parser of `starbucks <stage>`, or of a sub-command of it."""

    name: str
    parser: argparse.ArgumentParser

    @property
    def groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Title and flags of each group, without --help."""
        for group in self.parser._action_groups:
            actions = [action for action in group._group_actions if action.dest != "help"]
            if actions:
                yield group.title or "", actions

    @property
    def flags(self) -> set[str]:
        """The names of all flags, such as `--sizes`."""
        return {name for _, actions in self.groups for action in actions for name in action.option_strings}


def commands() -> Iterator[Command]:
    """Yield every command in the order of `starbucks --help`; for a stage with sub-commands, each of these."""
    for words, _, parser in stage_parsers():
        if parser is not None:
            yield Command(" ".join(words), parser)


def flag_pages() -> dict[str, tuple[str, str]]:
    """Return {command: (summary, page)}: the flags of each command, with its sub-commands, as a page in Markdown."""
    found: dict[str, tuple[str, str]] = {}
    for words, summary, parser in stage_parsers():
        if parser is None:
            found[words[0]] = (summary, f"# starbucks {words[0]}\n\n{_COMMON_LINK}\n")
        elif len(words) == 1:
            text = as_markdown(Command(words[0], parser), common=False)
            found[words[0]] = (summary, f"{text.removeprefix('#')}\n{_COMMON_LINK}\n")
        else:
            about, page = found[words[0]]
            found[words[0]] = (about, f"{page}\n{as_markdown(Command(' '.join(words), parser), common=False)}")
    return found


def overview() -> str:
    """Return a table of the commands, each with a link to its page, and the flags that all of them have."""
    lines = ["| command | |", "|---|---|"]
    lines += [
        f"| [`starbucks {name}`](flags/{name}.md) | {_cell(summary)} |" for name, (summary, _) in flag_pages().items()
    ]
    shared = next(actions for title, actions in next(commands()).groups if title == COMMON)
    return "\n".join([*lines, "", f"## {COMMON}", "", *_table(shared)])


def as_markdown(command: Command, common: bool) -> str:
    """Return a section with the flags of a command; the flags that all commands share only if `common`."""
    lines = [f"## starbucks {command.name}", "", _cell(command.parser.description or ""), ""]
    for title, actions in command.groups:
        if title != COMMON or common:
            lines += [f"**{title}**", "", *_table(actions)]
    if command.parser.epilog:
        lines += _examples(command.parser.epilog)
    return "\n".join(lines)


def _table(actions: list[argparse.Action]) -> list[str]:
    rows = [f"| `{action.option_strings[0]}` | {_value(action)} | {_cell(action.help or '')} |" for action in actions]
    return ["| flag | value | meaning |", "|---|---|---|", *rows, ""]


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
    """Return command lines as a block, any other epilogue as a paragraph."""
    lines = [" ".join(part.split()) for part in epilog.split("  |  ")]
    if all(line.startswith("starbucks ") for line in lines):
        return ["```bash", *map(_wrapped, lines), "```", ""]
    return [_cell(epilog), ""]


def _wrapped(command: str) -> str:
    """Return a command on as many lines as it needs in a page."""
    lines = textwrap.wrap(command, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines)
