"""The command `starbucks browse`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from starbucks_retrieval.browse.api import Pick, browse
from starbucks_retrieval.browse.serve import Server
from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_command, setup_logging

_EPILOG = (
    "starbucks browse small.trec big.trec --corpus scifact    |    "
    "starbucks browse run.trec --corpus corpus.jsonl --queries queries.tsv --qrels qrels.txt --serve"
)


@dataclass
class BrowseArguments:
    """Contents"""

    run: list[str] = flag(
        None,
        "TREC runs; the others are compared with the first (the flag may be left out if they come first)",
        required=True,
    )
    corpus: str = flag(None, "the corpus that was searched: file, BEIR folder, ir: or short name", required=True)
    queries: str | None = flag(None, "the queries that were searched (default: those of a BEIR folder)")
    qrels: str | None = flag(None, "relevance judgements (default: those of a BEIR folder)")
    split: str = flag("test", "split of the judgements of a BEIR folder or short name")
    label: list[str] | None = flag(None, "a name for each run (default: the size in its tag, or its file name)")
    measure: str = flag("nDCG@10", "measure, by the name that ir-measures gives it")
    relevance: int = flag(1, "grade from which a passage is marked as relevant (TREC DL: 2)")
    remove_identical_ids: bool = flag(False, "drop results that have the id of their query (ArguAna, Quora)")
    depth: int = flag(10, "passages shown of each run")
    max_queries: int = flag(200, "most queries on the page")
    pick: Pick = flag("changed", "queries to show if there are more: those that change most, the first, or random ones")
    max_text: int = flag(1500, "most characters of a passage")


@dataclass
class PageArguments:
    """Output"""

    output: str | None = flag(None, "file to write (default: browse.html, unless --serve)")
    serve: bool = flag(False, "serve the page on 127.0.0.1 until interrupted")
    port: int = flag(0, "with --serve: the port (default: any free one)")
    title: str | None = flag(None, "title of the page")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, write or serve the page, print where it is."""
    (shown, page, common), _ = parse_flags(
        [BrowseArguments, PageArguments, CommonArguments],
        _add_run_flag(argv),
        "starbucks browse",
        "A page of queries and what each run found for them, side by side.",
        _EPILOG,
    )
    setup_logging(common)
    flags = asdict(shown)
    runs, corpus, identical = (flags.pop(name) for name in ("run", "corpus", "remove_identical_ids"))
    output = page.output or (None if page.serve else "browse.html")
    done = browse(runs, corpus, **flags, remove_identical=identical, output=output, title=page.title, seed=common.seed)
    hint = f"; open {done.output}" if done.output else ""
    if not page.serve:
        finish(common, done.summary() + hint, done.figures)
        return
    with Server(done.html, page.port) as server:
        finish(
            common, f"{done.summary()}{hint}; served until interrupted (Ctrl-C) at", done.figures | {"url": server.url}
        )
        if not common.json:
            print(server.url, flush=True)
        server.run()


def _add_run_flag(argv: Sequence[str]) -> list[str]:
    """Return the arguments with --run before leading run files; a configuration file stays first."""
    first_flag = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    words, rest = list(argv[:first_flag]), list(argv[first_flag:])
    config = [words.pop(0)] if words and words[0].endswith((".yaml", ".yml", ".json")) else []
    return [*config, *(["--run", *words] if words else []), *rest]


if __name__ == "__main__":
    sys.exit(run_command(main))
