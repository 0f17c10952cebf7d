"""What the attack tried and what came of it: its record faults.json, and the page about it.

The long tests and fuzzing.py add an entry for each part that they ran to the file that ATTACK_RECORD names;
`python tests/attack/faults.py` writes the page anew from faults.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("faults.json")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
# An entry's key; a part that runs again with the same seed replaces its entry.
_KEY = ("part", "subject", "seed")
# Part → the fault, and what survived means.
PARTS = {
    "files": ("a file is damaged: bits, bytes, values, headers", "read, or refused in two lines with exit code 2"),
    "bits": (
        "one bit of a store, query vectors, an index or a manifest is flipped",
        "noticed, or the run has the same bytes",
    ),
    "arrow": (
        "one bit of an Arrow folder is flipped",
        "refused, or rows are read: texts have no checksum there, so they can be other ones",
    ),
    "kills": (
        "SIGKILL at any operation on files, then at another one of the rerun",
        "the next rerun ends with the same output folder and leaves nothing behind",
    ),
    "processes": (
        "SIGKILL of one of two processes, or of both, at any moment",
        "the next rerun ends with the same output folder",
    ),
    "disk": (
        "the disk is full, or files may not grow",
        "completed, or two lines, and the same command goes on when there is space",
    ),
    "errors": (
        "EIO or EDQUOT when a file is written or flushed",
        "completed, or two lines, and the same command goes on afterwards",
    ),
    "memory": ("hostile lengths, lines and nesting in a limited memory", "refused in two lines"),
}


def record(part: str, subject: str, seed: int, tried: int, lost: Iterable[str] = (), **outcomes: int) -> None:
    """Add an entry to the file that the environment variable ATTACK_RECORD names, if there is one.

    Args:
        part: One of `PARTS`.
        subject: What the faults were tried on.
        seed: Of the faults.
        tried: Faults.
        lost: A description of each that the code did not survive.
        outcomes: Counts of what happened, for the record.
    """
    if not (path := os.environ.get("ATTACK_RECORD")):
        return
    found = read(Path(path)) if Path(path).exists() else []
    entry: dict[str, Any] = {"part": part, "subject": subject, "seed": seed, "tried": tried, "lost": sorted(lost)}
    entry |= {"outcomes": outcomes, "date": datetime.now(UTC).date().isoformat()}
    write(Path(path), [*found, entry])


def read(path: Path = RECORD) -> list[dict[str, Any]]:
    """Return the entries of a record."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write a record, one entry a line; of entries with one key the last stays."""
    kept = {tuple(str(entry[name]) for name in _KEY): entry for entry in entries}
    lines = [json.dumps(entry) for _, entry in sorted(kept.items())]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def page(entries: list[dict[str, Any]]) -> str:
    """Return the page: a table of the parts, and one of the subjects of each."""
    lines = [
        "# Faults tried, survived, lost",
        "",
        "`make attack` damages files, kills commands and fills disks. The counts below are those of its recorded runs, all",
        "together; `python tests/attack/faults.py` writes this page from `tests/attack/faults.json`. *Lost* counts every",
        "case with another outcome than the one in the last column: a traceback, a crash, a hang, a wrong or mixed output, a",
        "refused rerun. *Mended* counts those of them that passed when the same case was tried again after a change.",
        "",
        "| fault | tried | survived | lost | mended | survived means |",
        "|---|---|---|---|---|---|",
    ]
    by_part = {part: [entry for entry in entries if entry["part"] == part] for part in PARTS}
    lines += [_row(PARTS[part][0], found, f" {PARTS[part][1]} |") for part, found in by_part.items() if found]
    for part, of_part in by_part.items():
        if not of_part:
            continue
        fault = PARTS[part][0]
        dates = sorted({entry["date"] for entry in of_part})
        seeds = ", ".join(map(str, sorted({entry["seed"] for entry in of_part})))
        between = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else dates[0]
        lines += ["", f"## {fault[0].upper()}{fault[1:]}", "", f"{between}, seeds {seeds}.", ""]
        lines += ["| on | tried | survived | lost | mended | outcomes |", "|---|---|---|---|---|---|"]
        for subject in dict.fromkeys(entry["subject"] for entry in of_part):
            same = [entry for entry in of_part if entry["subject"] == subject]
            names = sorted({name for entry in same for name in entry["outcomes"]})
            counts = {name: sum(entry["outcomes"].get(name, 0) for entry in same) for name in names}
            told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
            lines.append(_row(subject, same, f" {told} |"))
    return "\n".join(lines) + "\n"


def _row(name: str, entries: list[dict[str, Any]], rest: str) -> str:
    tried = sum(entry["tried"] for entry in entries)
    mended = sum(len(entry.get("mended", ())) for entry in entries)
    lost = mended + sum(len(entry["lost"]) for entry in entries)
    return f"| {name} | {tried:,} | {tried - lost:,} | {lost:,} | {mended:,} |{rest}"


if __name__ == "__main__":
    PAGE.write_text(page(read()), encoding="utf-8")
