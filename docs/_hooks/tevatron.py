"""The tables of docs/howto/from-tevatron.md, made of the parser's own. `python docs/_hooks/tevatron.py` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from starbucks_retrieval.cli.tevatron import IGNORED, REFUSED, ROWS, SAME

PAGE = Path(__file__).parents[1] / "howto" / "from-tevatron.md"


def with_tables(page: str) -> str:
    """Return the text of the page with the table below each heading `starbucks COMMAND` replaced."""
    for command in dict.fromkeys(row.command for row in ROWS):
        match = re.search(rf"## `starbucks {command}`\n\n((?:\|.*\n)+)", page)
        if match:
            page = f"{page[: match.start(1)]}{as_table(command)}\n{page[match.end(1) :]}"
    return page


def as_table(command: str) -> str:
    """Return the table of a command in Markdown."""
    lines = ["| Tevatron | ours | |", "|---|---|---|"]
    for row in ROWS:
        if row.command == command:
            theirs = ", ".join(f"`--{name}`" for name in row.flags) if row.is_flag else row.flags[0]
            replaced = row.is_flag and row.ours not in (SAME, IGNORED, REFUSED)
            ours = f"`{row.ours.removesuffix('=')}`" if replaced else row.ours
            note = row.note if row.ours != REFUSED else _as_code(row.note)
            lines.append(f"| {theirs} | {ours} | {note} |")
    return "\n".join(lines)


def _as_code(hint: str) -> str:
    """Return a hint with its command in back quotes."""
    start = hint.find("starbucks ")
    stops = [at for end in (" merges", " stores") if (at := hint.find(end, start)) > 0]
    if start < 0 or not stops:
        return hint
    return f"{hint[:start]}`{hint[start : min(stops)]}`{hint[min(stops) :]}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
