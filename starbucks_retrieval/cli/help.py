"""The text of `--help`: examples first, then flags in order of need."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from starbucks_retrieval.cli.words import flag_chunks
from starbucks_retrieval.errors import UserError

RARE = "Rarely needed"  # the heading of the flags with `rare=True`
_WIDEST = 120


class FlagParser(argparse.ArgumentParser):
    """A parser that raises UserError for a bad command line, and prints its examples before the flags.

    Args:
        prog: The command, as `starbucks search`.
        description: One sentence.
        examples: Command lines.
        notes: Text between the examples and the flags.

    Attributes:
        examples: Command lines.
        notes: Text between the examples and the flags.
    """

    def __init__(self, prog: str, description: str, examples: Sequence[str] = (), notes: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags]",
            description=description,
            epilog="  |  ".join(examples),
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Formatter,
        )
        self.examples = tuple(examples)
        self.notes = notes

    def error(self, message: str) -> NoReturn:
        raise UserError(message, f"see {self.prog} --help")

    def format_help(self) -> str:
        """Return the help text, as wide as the terminal."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        sections = [formatter.format_help()]
        if self.examples:
            lines = (wrap_command(line, terminal_width()) for line in self.examples)
            sections.append("\n".join(["Examples:", *lines]))
        flags = self._get_formatter()
        flags.add_text(self.notes or None)
        for group in self._action_groups:
            flags.start_section(group.title)
            flags.add_arguments(group._group_actions)
            flags.end_section()
        sections.append(flags.format_help())
        return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def terminal_width() -> int:
    """Return the columns of the terminal, at most 120; 80 where there is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def wrap_command(command: str, width: int) -> str:
    """Return a command line with an indent, continued on further lines before a flag where it is too long.

    Args:
        command: The command line.
        width: The columns of a line, if no single flag is longer.

    Example:
        >>> print(wrap_command("starbucks search --query_reps q --passage_reps p --size 6:128", 50))
          starbucks search --query_reps q \\
              --passage_reps p --size 6:128
    """
    lines = [""]
    for chunk in flag_chunks(command.split()):
        text = " ".join(chunk)
        if lines[-1] and len(lines[-1]) + len(text) + 5 > width:
            lines.append("    " + text)
        else:
            lines[-1] += f" {text}" if lines[-1] else text
    return " \\\n".join(f"  {line}" for line in lines)


def wrap_item(name: str, text: str, width: int) -> str:
    """Return a name and what it means, in two columns.

    Args:
        name: The name; at most ten characters are aligned.
        text: Its meaning.
        width: The columns of a line.

    Example:
        >>> print(wrap_item("fit", "make small sizes good in minutes", 36))
          fit         make small sizes good
                      in minutes
    """
    return textwrap.fill(
        text, width, initial_indent=f"  {name:10}  ", subsequent_indent=" " * 14, break_on_hyphens=False
    )


class _Formatter(argparse.HelpFormatter):
    """Shows a switch without its values and a flag with several values once, and breaks no name at a hyphen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=terminal_width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+":
            return f"{action.metavar or default_metavar} …"
        # A switch may also be followed by true or false, which a user who turns it on need not know.
        return "" if getattr(action, "is_switch", False) else super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return super()._format_action_invocation(action).rstrip()
