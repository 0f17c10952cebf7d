"""Queries at a terminal: read a line, print the hits and the time."""

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


def format_hits(hits: Iterable[Hit]) -> str:
    """Return hits as text for a terminal: rank, score, docid and title on one line, the start of the text on the next.

    Example:
        >>> print(format_hits([Hit("d7", 0.5, "Hens", "Hens lay eggs.")]))
          1.   0.5000  d7  Hens
             Hens lay eggs.
    """
    lines = []
    for rank, hit in enumerate(hits, 1):
        lines.append(f"{rank:3}. {hit.score:8.4f}  {hit.docid}" + (f"  {hit.title}" if hit.title else ""))
        text = " ".join(hit.text.split())
        if text:
            lines.append("     " + (text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"))
    return "\n".join(lines)


def converse(searcher: Searcher, k: int) -> int:
    """Answer each line of standard input until an empty line or the end. Returns the number of answers.

    Hits go to standard output, everything else to standard error. A line that starts with a colon is a command; an error
    is printed, and the next line is read. After a change of size or funnel the last query is answered again.

    Args:
        searcher: Answers the queries.
        k: Passages per query.
    """
    answered = 0
    query: str | None = None
    hits: list[Hit] = []
    for line in _lines():
        try:
            if not line.startswith(":"):
                query = line
            elif not _run_colon_command(searcher, line, hits) or query is None:
                continue
            answer = searcher.answer(query, k)
        except UserError as error:
            _say(f"error: {error.what}" + (f"\n  try: {error.hint}" if error.hint else ""))
            continue
        hits = answer.hits
        print(format_hits(hits), flush=True)
        _say(f"encode {answer.encode_ms:.1f} ms, search {answer.search_ms:.1f} ms at {searcher.funnel}")
        answered += 1
    return answered


def _run_colon_command(searcher: Searcher, line: str, hits: list[Hit]) -> bool:
    """Run a command such as `:size 2:32`. Returns whether size or funnel were changed."""
    command, _, value = line[1:].partition(" ")
    value = value.strip()
    if command == "size":
        searcher.use(size=Size.parse(value))
    elif command == "funnel":
        searcher.use(funnel=value)
    elif command == "help":
        _say(f"{_HELP}\nstored: {Sizes(searcher.stored_sizes)}, and smaller dims of each")
        return False
    elif command == "text":
        if not (value.isdecimal() and 1 <= int(value) <= len(hits)):
            raise UserError(
                f"no passage {value or 'is named'}", f"the last answer has {len(hits)}; :text 1 is the first"
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
    terminal = sys.stdin.isatty()
    edited = terminal and sys.stdout.isatty()
    if edited:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() arrow keys and a history
    while True:
        if terminal and not edited:  # input() would print its prompt among the hits
            print(_PROMPT, end="", file=sys.stderr, flush=True)
        try:
            line = (input(_PROMPT) if edited else sys.stdin.readline()).strip()
        except EOFError:
            return
        if not line:
            return
        yield line
