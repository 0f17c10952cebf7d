"""Dry runs: the flag, and the description of the work that a command would do."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.command import finish
from starbucks_retrieval.cli.flags import CommonArguments, flag


@dataclass
class DryRunArguments:
    """Dry run"""

    dry_run: bool = flag(False, "write nothing; print the work, the bytes it would write and the estimated time")


@dataclass(frozen=True)
class Preview:
    """The work that a command would do.

    Attributes:
        lines: (heading, text) pairs for a terminal.
        figures: The same as a JSON-ready mapping.

    Example:
        >>> print(Preview([("data", "8 rows"), ("writes", "2 MB")], {"rows": 8}))
        data    8 rows
        writes  2 MB
    """

    lines: list[tuple[str, str]]
    figures: dict[str, Any]

    def __str__(self) -> str:
        width = max((len(heading) for heading, _ in self.lines), default=0)
        return "\n".join(f"{heading:{width}}  {text}" for heading, text in self.lines)

    def show(self, common: CommonArguments) -> None:
        """Print it and end the command."""
        if not common.json:
            print(self, flush=True)
        finish(common, "dry run: nothing was written", {"dry_run": True, **self.figures})


def duration(seconds: float | None) -> str:
    """Return an estimated time in words.

    Args:
        seconds: The estimate; None means that there is none.

    Example:
        >>> duration(5400.0), duration(None)
        ('about 90 minutes on this device at its current load', 'not estimated')
    """
    if seconds is None:
        return "not estimated"
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit} on this device at its current load"
    return f"about {max(1, seconds):.0f} s on this device at its current load"


def free_bytes(output: str | Path) -> int | None:
    """Return the free bytes on the disk of an output path.

    Args:
        output: A local path, which need not exist yet, or a URL.

    Returns:
        The free bytes of the file system of its closest existing folder; None for a URL.
    """
    if "://" in str(output):
        return None
    folder = Path(output).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
