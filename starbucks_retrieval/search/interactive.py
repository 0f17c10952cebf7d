"""Typed queries at a terminal: read a line, show what was found and how long it took."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.searcher import Hit, Searcher
from starbucks_retrieval.sizes import Size

_SNIPPET = 160
_HELP = """type a query, or
  :size 2:32                    search exactly at this size
  :funnel 2:32@1000,12:768      shortlist 1000 passages at 2:32, rank them at 12:768
  :help                         show this
an empty line ends"""


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
    """Answer each line of standard input until an empty one or its end. Returns how many queries were answered.

    Hits go to standard output, all else to standard error. A line that starts with a colon is a command; what is wrong
    with one is said, and the conversation goes on.
    """
    answered = 0
    for line in _lines():
        try:
            if line.startswith(":"):
                _say(_obey(searcher, line))
                continue
            answer = searcher.answer(line, k)
        except UserError as error:
            _say(f"error: {error.what}" + (f"\n  try: {error.hint}" if error.hint else ""))
            continue
        print(show(answer.hits), flush=True)
        _say(f"encode {answer.encode_ms:.1f} ms, search {answer.search_ms:.1f} ms at {searcher.funnel}")
        answered += 1
    return answered


def _obey(searcher: Searcher, line: str) -> str:
    command, _, value = line[1:].partition(" ")
    if command == "size":
        searcher.use(size=Size.parse(value))
    elif command == "funnel":
        searcher.use(funnel=value.strip())
    elif command == "help":
        return _HELP
    else:
        raise UserError(f"there is no command :{command}", ":help lists them")
    return f"searching at {searcher.funnel}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line
