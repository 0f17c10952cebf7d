"""The command `starbucks search`: runs from stored queries, or answers to queries as text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, parse_command
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import (
    FunnelArguments,
    IndexArguments,
    MilvusArguments,
    PlanArguments,
    QueryArguments,
    SearchArguments,
)
from starbucks_retrieval.search.api import run_search
from starbucks_retrieval.search.dry_run import preview
from starbucks_retrieval.search.estimate import estimate_searches
from starbucks_retrieval.search.funnel_auto import choose_stored_funnel
from starbucks_retrieval.search.plan import check_flags, plan_searches
from starbucks_retrieval.search.search_setup import check_hits
from starbucks_retrieval.search.searcher import Hit, Searcher
from starbucks_retrieval.sizes import Size, Sizes

DESCRIPTION = "Find the nearest passages of every stored query and write a run; or answer a query given as text."
EXAMPLES = (
    "starbucks search --query_reps q --passage_reps p --size 6:128 --save_ranking_to run.trec",
    "starbucks search --query_reps q --passage_reps p --funnel 2:32@1000,12:768 --save_ranking_to run.trec",
    "starbucks search --model_name_or_path model --passage_reps p --size 6:128 --corpus_path corpus.jsonl --interactive",
)


def main(argv: Sequence[str]) -> None:
    """Parse the flags, search and print a summary."""
    classes = [SearchArguments, FunnelArguments, IndexArguments, MilvusArguments]
    classes += [QueryArguments, PlanArguments, DryRunArguments]
    args, funnel, index, milvus, query_args, plan_args, dry_run_args, common = parse_command(
        classes, argv, "starbucks search", DESCRIPTION, EXAMPLES
    )
    if plan_args.plan:
        if index.approximate:
            raise UserError(
                "--plan estimates exact search and funnels, not approximate indexes",
                "omit the index; time a search with --index and --measure_recall on a sample of the passages instead",
            )
        estimates = estimate_searches(args, plan_args, query_args.model_name_or_path, common.seed)
        return finish(common, str(estimates), estimates.to_json())
    if query_args.query is not None or query_args.interactive:
        return _answer(args, funnel, query_args, common)
    check_flags(args, funnel, index)
    if dry_run_args.dry_run:
        return preview(plan_searches(args, funnel, index, milvus, seed=common.seed), funnel).show(common)
    figures: dict[str, Any] = {}
    if funnel.funnel == "auto":
        choice = choose_stored_funnel(args, funnel, index, common.seed)
        figures["choice"] = choice.to_json()
        funnel, index = choice.flags(index)
    summaries = [run_search(plan) for plan in plan_searches(args, funnel, index, milvus, seed=common.seed)]
    runs = [summary.to_json() for summary in summaries]
    return finish(common, "\n".join(map(str, summaries)), {"runs": runs} if args.sizes else runs[0] | figures)


def _answer(
    args: SearchArguments, funnel: FunnelArguments, query_args: QueryArguments, common: CommonArguments
) -> None:
    if not args.passage_reps:
        raise UserError("--passage_reps is missing", "see starbucks search --help")
    if not query_args.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "the model of the passages encodes the query")
    if funnel.funnel == "auto":
        raise UserError("--funnel auto is chosen with stored queries", "choose it first, then name its steps here")
    if args.named_size is not None and funnel.funnel:
        raise UserError("--funnel and --size (or --layer, --dim) contradict each other", "give one of them")
    check_hits(query_args.hits)
    searcher = Searcher(
        query_args.model_name_or_path,
        args.passage_reps,
        query_args.corpus_path,
        size=args.named_size,
        funnel=funnel.funnel,
        query_size=args.named_query_size,
        max_memory=args.memory_bytes,
        device=args.device,
        encode_only=True,
        checksum=not args.skip_checksum,
    )
    if query_args.query is not None:
        answer = searcher.answer(query_args.query, query_args.hits)
        if not common.json:
            print(format_hits(answer.hits))
        times = {"encode_ms": round(answer.encode_ms, 1), "search_ms": round(answer.search_ms, 1)}
        finish(
            common,
            f"{len(answer.hits)} of {searcher.store.count} passages, {searcher.funnel}, "
            f"{times['encode_ms']} ms to encode, {times['search_ms']} ms to search",
            {"query": query_args.query, "hits": [hit.to_json() for hit in answer.hits], **times},
        )
    if query_args.interactive:
        converse(searcher, query_args.hits)


_LINE = 119  # characters
_PROMPT = "query> "
_HELP = """type a query, or
  :size 2:32                    search exactly at this size, and the last query again
  :size 1:128/6:128             the query at layer 1, passages at layer 6, for a model that starbucks fit made
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
        lines.append(_cut(f"{rank:3}. {hit.score:8.4f}  {hit.docid}" + (f"  {hit.title}" if hit.title else "")))
        text = " ".join(hit.text.split())
        if text:
            lines.append(_cut("     " + text))
    return "\n".join(lines)


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


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
        named, pair, passages = value.partition("/")
        searcher.use(size=Size.parse(passages or named), query_size=Size.parse(named) if pair else None)
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


if __name__ == "__main__":
    exit_command(main)
