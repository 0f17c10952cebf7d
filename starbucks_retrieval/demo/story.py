"""The terminal of a demonstration: one line for each part, and the commands that the parts stand for."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging.handlers import MemoryHandler

from starbucks_retrieval.cli.words import flag_chunks

log = logging.getLogger(__name__)
_PACKAGE = logging.getLogger("starbucks_retrieval")
_WIDTH = 110


@dataclass
class Part:
    """A part that runs.

    Attributes:
        outcome: What came out, for its line.
        commands: The command lines that it stands for.
        seconds: The seconds that it took.
        kept: Whether an earlier demonstration did it.
    """

    outcome: str = ""
    commands: Sequence[str] = ()
    seconds: float = 0.0
    kept: bool = False


class Story:
    """Prints a line for each part once it is done; on a terminal, its title is shown while it runs.

    Args:
        total: The number of parts.
        commands: Print the commands of each part below its line.
    """

    def __init__(self, total: int, commands: bool = False) -> None:
        self.total, self.commands = total, commands
        self._number = 0

    @contextlib.contextmanager
    def part(self, title: str) -> Iterator[Part]:
        """Run a part, in which nothing is printed but warnings, after its line; `--log_level debug` prints everything.

        Args:
            title: What the part does.

        Yields:
            The part, whose attributes the caller sets.
        """
        self._number += 1
        head, part = f"{self._number}/{self.total}  {title}", Part()
        with _title_shown(head), _logs_held_back():
            yield part
        how = f"kept from an earlier run, {part.seconds:.0f} s" if part.kept else f"{part.seconds:.0f} s"
        log.info("%s: %s (%s)", head, part.outcome, how)
        for line in part.commands if self.commands else ():
            log.info("     $ %s", wrapped(line))


def wrapped(line: str) -> str:
    """Return a command line in several short lines that can be pasted into a shell; values stay beside their flag.

    Example:
        >>> print(wrapped("starbucks encode " + "--flag value " * 10))
        starbucks encode --flag value --flag value --flag value --flag value --flag value --flag value \\
              --flag value --flag value --flag value --flag value
    """
    lines = [""]
    for chunk in flag_chunks(shlex.split(line)):
        whole = shlex.join(chunk)
        for words in [whole] if len(whole) < _WIDTH - 8 else map(shlex.quote, chunk):
            if lines[-1] and len(lines[-1]) + len(words) >= _WIDTH - 8:
                lines.append("")
            lines[-1] += (" " if lines[-1] else "") + words
    return " \\\n      ".join(lines)


@contextlib.contextmanager
def _title_shown(title: str) -> Iterator[None]:
    if not (sys.stderr.isatty() and log.isEnabledFor(logging.INFO)):
        yield
        return
    print(f"{title} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _logs_held_back() -> Iterator[None]:
    """Drop what is below a warning, and print warnings at the end, so that they do not join the title."""
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    level, handlers = _PACKAGE.level, list(_PACKAGE.handlers)
    waiting = [MemoryHandler(10_000, logging.CRITICAL + 1, handler) for handler in handlers]
    _PACKAGE.handlers[:] = waiting
    _PACKAGE.setLevel(max(logging.WARNING, _PACKAGE.getEffectiveLevel()))
    try:
        yield
    finally:
        _PACKAGE.setLevel(level)
        _PACKAGE.handlers[:] = handlers
        for handler in waiting:
            handler.close()
