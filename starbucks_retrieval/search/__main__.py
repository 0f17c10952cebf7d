"""Door of search: a run from stored queries, or an answer to a typed one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starbucks_retrieval.cli import CommonArguments, finish, flag, parse_flags, run_door, setup_logging
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.api import asked_size, search
from starbucks_retrieval.search.interactive import converse, show
from starbucks_retrieval.search.searcher import Searcher

DESCRIPTION = "Find the nearest passages of every stored query and write a run; or answer a typed query."
EPILOG = (
    "starbucks search --query_reps q --passage_reps p --size 6:128 --save_ranking_to run.trec    |    "
    "starbucks search --model_name_or_path model --passage_reps p --size 6:128 --corpus_path corpus.jsonl --interactive"
)


@dataclass
class SearchArguments:
    """Search"""

    passage_reps: str | None = flag(None, "passages: what encode wrote, or a quoted pattern of parts", required=True)
    query_reps: str | None = flag(None, "queries: what encode --encode_is_query wrote")
    size: str | None = flag(None, "layer:dim, where several sizes are stored")
    layer: int | None = flag(None, "the same in two flags")
    dim: int | None = flag(None, "the same in two flags")
    depth: int = flag(1000, "passages per query in the run")
    save_ranking_to: str | None = flag(None, "the run file; .gz compresses it")
    save_format: Literal["trec", "msmarco", "tevatron"] = flag("trec", "columns of the run")
    batch_size: int = flag(1024, "queries per pass over the passages; -1: as many as fit in memory")
    max_memory: str = flag("2GB", "memory for vectors and result lists; never changes results")
    threads: int | None = flag(None, "CPU threads of FAISS")


@dataclass
class TypedQueryArguments:
    """Typed queries"""

    query: str | None = flag(None, "answer this query")
    interactive: bool = flag(False, "answer each line typed, until an empty one")
    model_name_or_path: str | None = flag(None, "the model that encoded the passages")
    corpus_path: str | None = flag(None, "the corpus that was encoded, to show titles and texts")
    hits: int = flag(10, "passages shown")


def main(argv: Sequence[str]) -> None:
    """Parse, search, print a summary."""
    (search_args, typed, common), _ = parse_flags(
        [SearchArguments, TypedQueryArguments, CommonArguments], argv, "starbucks search", DESCRIPTION, EPILOG
    )
    setup_logging(common)
    if typed.query is not None or typed.interactive:
        _answer(search_args, typed, common)
    else:
        _rank(search_args, common)


def _rank(args: SearchArguments, common: CommonArguments) -> None:
    for name in ("query_reps", "save_ranking_to"):
        if not getattr(args, name):
            raise UserError(f"--{name} is missing", "give it, or type a query with --query or --interactive")
    summary = search(**vars(args))
    finish(common, str(summary), summary.to_json())


def _answer(args: SearchArguments, typed: TypedQueryArguments, common: CommonArguments) -> None:
    if not typed.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "a typed query is encoded by the model of the passages")
    size = asked_size(args.size, args.layer, args.dim)
    searcher = Searcher(
        typed.model_name_or_path, args.passage_reps or "", typed.corpus_path, size=size, max_memory=args.max_memory
    )
    if typed.query is not None:
        hits = searcher.search(typed.query, typed.hits)
        if not common.json:
            print(show(hits))
        finish(
            common,
            f"{len(hits)} of {searcher.store.count} passages, at {searcher.size}",
            {"query": typed.query, "hits": [hit.to_json() for hit in hits]},
        )
    if typed.interactive:
        converse(searcher, typed.hits)


if __name__ == "__main__":
    sys.exit(run_door(main))
