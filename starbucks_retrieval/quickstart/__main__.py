"""The command `starbucks quickstart`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, parse_command
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.quickstart import QuickstartArguments

if TYPE_CHECKING:
    from starbucks_retrieval.data import Query
    from starbucks_retrieval.search import Searcher

_EXAMPLES = (
    "starbucks quickstart docs.csv",
    "starbucks quickstart my-folder",
    "starbucks quickstart docs.jsonl --queries queries.csv",
    "starbucks quickstart docs.csv --text_column body",
)


def main(argv: Sequence[str]) -> None:
    """Parse the flags, make the search, answer queries or open the prompt, and print what to type next."""
    if len(argv) > 1 and not argv[0].startswith("-") and not argv[1].startswith("-"):
        raise UserError(f"{argv[0]} and {argv[1]} are several names", "name one file, or the folder that holds them")
    is_file = argv and not argv[0].startswith("-") and not argv[0].endswith((".yaml", ".yml"))
    arguments, dry_run_args, common = parse_command(
        [QuickstartArguments, DryRunArguments],
        ["--documents", *argv] if is_file else argv,
        "starbucks quickstart",
        "Search your own documents in minutes: read and split them, fit small sizes, encode, and answer queries. A rerun "
        "of the same command keeps what is finished.",
        _EXAMPLES,
    )
    from starbucks_retrieval.quickstart.documents import open_documents, read_queries

    queries = read_queries(Path(arguments.queries).expanduser(), arguments.encoding) if arguments.queries else None
    documents = open_documents(arguments)  # before torch is imported: a mistake is told at once
    if dry_run_args.dry_run:
        from starbucks_retrieval.quickstart.plan import plan_quickstart

        plan_quickstart(arguments, documents).preview().show(common)
        return
    from starbucks_retrieval.quickstart.api import quickstart
    from starbucks_retrieval.search import Searcher
    from starbucks_retrieval.search.__main__ import converse
    from starbucks_retrieval.sizes import Size

    figures = quickstart(arguments, documents)
    searcher = Searcher(
        figures["model"],
        figures["passage_reps"],
        figures["corpus"],
        size=Size.parse(figures["sizes"][-1]),
        device=arguments.device,
    )
    if queries:
        figures["answers"] = _answer(searcher, queries, arguments, common)
        figures["next"] = _write_queries(figures, queries, arguments)
    elif sys.stdin.isatty() and not common.json:
        if not common.quiet:
            print(_invitation(figures), file=sys.stderr)
        converse(searcher, arguments.hits)
    finish(common, _closing(figures), figures)


def _answer(
    searcher: Searcher, queries: list[Query], arguments: QuickstartArguments, common: CommonArguments
) -> list[dict[str, Any]]:
    """Answer queries, print the hits unless `--json` is given, and return them."""
    from starbucks_retrieval.search.__main__ import format_hits

    answers = []
    for query in queries:
        hits = searcher.search(query.text, arguments.hits)
        answers.append({"query_id": query.query_id, "query": query.text, "hits": [hit.to_json() for hit in hits]})
        if not common.json:
            print(f"\n{query.text}\n{format_hits(hits)}", flush=True)
    return answers


def _write_queries(
    figures: dict[str, Any], queries: list[Query], arguments: QuickstartArguments
) -> list[dict[str, str]]:
    from starbucks_retrieval.quickstart.api import next_lines
    from starbucks_retrieval.quickstart.documents import write_lines

    rows = ({"query_id": query.query_id, "query": query.text} for query in queries)
    write_lines(Path(figures["output"], "queries.jsonl"), rows)
    return next_lines(figures, arguments.device, queries)


def _invitation(figures: dict[str, Any]) -> str:
    from starbucks_retrieval.quickstart.api import small_size
    from starbucks_retrieval.sizes import Size, Sizes

    ready = f"\n{figures['passages']} passages of {figures['documents']} documents, {figures['seconds']:.0f} s"
    sizes = Sizes(map(Size.parse, figures["sizes"]))
    others = f"; :size {small_size(sizes)} searches with a small size" if len(sizes) > 1 else ""
    return f"{ready}. Type a query; an empty line ends, :help lists commands{others}"


def _closing(figures: dict[str, Any]) -> str:
    summary = (
        f"\n{figures['documents']} documents, {figures['passages']} passages, sizes {','.join(figures['sizes'])}, "
        f"{figures['seconds']:.0f} s; in {figures['output']}"
    )
    return "\n".join([summary, "next:", *(f"\n  # {line['what']}\n  {line['command']}" for line in figures["next"])])


if __name__ == "__main__":
    exit_command(main)
