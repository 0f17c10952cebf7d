"""Typed queries at a terminal: read a line, show what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from starbucks_retrieval.search.searcher import Hit, Searcher

_SNIPPET = 160


def show(hits: Iterable[Hit]) -> str:
    """Hits as text for a terminal: rank, score, docid and title on one line, the start of the text on the next."""
    lines = []
    for rank, hit in enumerate(hits, 1):
        lines.append(f"{rank:3}. {hit.score:8.4f}  {hit.docid}" + (f"  {hit.title}" if hit.title else ""))
        text = " ".join(hit.text.split())
        if text:
            lines.append("     " + (text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"))
    return "\n".join(lines)


def converse(searcher: Searcher, k: int) -> int:
    """Answer each line of standard input until an empty one or its end. Returns how many queries were answered."""
    answered = 0
    for line in _lines():
        print(show(searcher.search(line, k)), flush=True)
        answered += 1
    return answered


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line
