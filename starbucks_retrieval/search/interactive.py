"""Typed queries at a terminal: read a line, show what was found and how long it took."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.searcher import Hit, Searcher
from starbucks_retrieval.sizes import Size, Sizes

_SNIPPET = 160
_PROMPT = "query> "
_HELP = """type a query, or
  :size 2:32                    search exactly at this size, and the last query again
  :funnel 2:32@1000,12:768      shortlist 1000 passages at 2:32, rank them at 12:768, and the last query again
  :text 3                       the whole text of the third passage
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
    """Answer each line of standard input until an empty one or its end. Returns how many answers were given.

    Hits go to standard output, all else to standard error. A line that starts with a colon is a command; what is wrong
    with one is said, and the conversation goes on. After a switch of sizes the last query is answered again.
    """
    answered = 0
    query: str | None = None
    hits: list[Hit] = []
    for line in _lines():
        try:
            if not line.startswith(":"):
                query = line
            elif not _obey(searcher, line, hits) or query is None:
                continue
            answer = searcher.answer(query, k)
        except UserError as error:
            _say(f"error: {error.what}" + (f"\n  try: {error.hint}" if error.hint else ""))
            continue
        hits = answer.hits
        print(show(hits), flush=True)
        _say(f"encode {answer.encode_ms:.1f} ms, search {answer.search_ms:.1f} ms at {searcher.funnel}")
        answered += 1
    return answered


def _obey(searcher: Searcher, line: str, hits: list[Hit]) -> bool:
    """Do what a command says. Returns whether it was a switch of sizes."""
    command, _, value = line[1:].partition(" ")
    value = value.strip()
    if command == "size":
        searcher.use(size=Size.parse(value))
    elif command == "funnel":
        searcher.use(funnel=value)
    elif command == "help":
        _say(f"{_HELP}\nstored: {Sizes(searcher.stored_sizes)}, and any first numbers of each")
        return False
    elif command == "text":
        if not (value.isdecimal() and 1 <= int(value) <= len(hits)):
            raise UserError(
                f"no passage {value or 'is named'}", f"the last answer has {len(hits)}, :text 1 is its first"
            )
        hit = hits[int(value) - 1]
        print("\n".join(part for part in (hit.docid, hit.title, hit.text) if part), flush=True)
        return False
    else:
        raise UserError(f"there is no command :{command}", ":help lists them")
    _say(f"searching at {searcher.funnel}")
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lines() -> Iterator[str]:
    typed = sys.stdin.isatty()
    edited = typed and sys.stdout.isatty()
    if edited:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() its arrow keys and the lines typed before
    while True:
        if typed and not edited:  # input() would put its prompt among the hits
            print(_PROMPT, end="", file=sys.stderr, flush=True)
        try:
            line = (input(_PROMPT) if edited else sys.stdin.readline()).strip()
        except EOFError:
            return
        if not line:
            return
        yield line
