"""What doors share that can say what they would do: the flag, the answer, and how times and places are told."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import CommonArguments, finish, flag


@dataclass
class DryRunArguments:
    """Trying it out"""

    dry_run: bool = flag(False, "write nothing: say what would be done, how many bytes it takes and about how long")


@dataclass(frozen=True)
class Preview:
    """What a door would do: lines for a terminal, each (what, told), and figures, JSON-ready."""

    lines: list[tuple[str, str]]
    figures: dict[str, Any]

    def __str__(self) -> str:
        width = max((len(what) for what, _ in self.lines), default=0)
        return "\n".join(f"{what:{width}}  {told}" for what, told in self.lines)

    def show(self, common: CommonArguments) -> None:
        """End a door with it."""
        if not common.json:
            print(self, flush=True)
        finish(common, "dry run: nothing was written", {"dry_run": True, **self.figures})


def duration(seconds: float | None) -> str:
    """An estimated time in words; None is not estimated."""
    if seconds is None:
        return "not estimated"
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit} on this device, as busy as it is now"
    return f"about {max(1, seconds):.0f} s on this device, as busy as it is now"


def free_bytes(output: str | Path) -> int | None:
    """Bytes free where a local output would lie; None for a URL."""
    if "://" in str(output):
        return None
    folder = Path(output).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
