"""The command `starbucks search`: runs from stored queries, or answers to queries as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starbucks_retrieval.cli import CommonArguments, finish, parse_flags, run_command, setup_logging
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.arguments import (
    FunnelArguments,
    IndexArguments,
    MilvusArguments,
    PlanArguments,
    QueryArguments,
    SearchArguments,
)

DESCRIPTION = "Find the nearest passages of every stored query and write a run; or answer a query given as text."
EPILOG = (
    "starbucks search --query_reps q --passage_reps p --size 6:128 --save_ranking_to run.trec    |    "
    "starbucks search --query_reps q --passage_reps p --funnel 2:32@1000,12:768 --save_ranking_to run.trec    |    "
    "starbucks search --model_name_or_path model --passage_reps p --size 6:128 --corpus_path corpus.jsonl --interactive"
)


def main(argv: Sequence[str]) -> None:
    """Parse the flags, search and print a summary."""
    classes = [SearchArguments, FunnelArguments, IndexArguments, MilvusArguments]
    classes += [QueryArguments, PlanArguments, DryRunArguments, CommonArguments]
    (args, funnel, index, milvus, query_args, plan_args, dry_run_args, common), _ = parse_flags(
        classes, argv, "starbucks search", DESCRIPTION, EPILOG
    )
    setup_logging(common)
    if plan_args.plan:
        _estimate(args, funnel, index, query_args, plan_args, common)
    elif query_args.query is not None or query_args.interactive:
        _answer(args, funnel, query_args, common)
    else:
        _write_runs(args, funnel, index, milvus, dry_run_args, common)


def _estimate(
    args: SearchArguments,
    funnel: FunnelArguments,
    index: IndexArguments,
    query_args: QueryArguments,
    plan_args: PlanArguments,
    common: CommonArguments,
) -> None:
    if index.approximate:
        raise UserError(
            "--plan estimates exact search and funnels, not approximate indexes",
            "omit the index; time a search with --index and --measure_recall on a sample of the passages instead",
        )
    from starbucks_retrieval.search.estimate import estimate_searches

    estimates = estimate_searches(args, plan_args, query_args.model_name_or_path, common.seed)
    finish(common, str(estimates), estimates.to_json())


def _write_runs(
    args: SearchArguments,
    funnel: FunnelArguments,
    index: IndexArguments,
    milvus: MilvusArguments,
    dry_run_args: DryRunArguments,
    common: CommonArguments,
) -> None:
    from starbucks_retrieval.search.api import choose_stored_funnel, run_search
    from starbucks_retrieval.search.plan import check_flags, plan_searches

    check_flags(args, funnel, index)
    if dry_run_args.dry_run:
        from starbucks_retrieval.search.dry_run import preview

        preview(plan_searches(args, funnel, index, milvus, seed=common.seed), funnel).show(common)
        return
    figures: dict[str, Any] = {}
    if funnel.funnel == "auto":
        choice = choose_stored_funnel(args, funnel)
        figures["choice"] = choice.to_json()
        funnel = replace(funnel, funnel=str(choice.funnel))
    summaries = [run_search(plan) for plan in plan_searches(args, funnel, index, milvus, seed=common.seed)]
    runs = [summary.to_json() for summary in summaries]
    finish(common, "\n".join(map(str, summaries)), {"runs": runs} if args.sizes else runs[0] | figures)


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
    from starbucks_retrieval.search.interactive import converse, format_hits
    from starbucks_retrieval.search.searcher import Searcher

    searcher = Searcher(
        query_args.model_name_or_path,
        args.passage_reps,
        query_args.corpus_path,
        size=args.named_size,
        funnel=funnel.funnel,
        max_memory=args.memory_bytes,
        device=args.device,
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


if __name__ == "__main__":
    sys.exit(run_command(main))
