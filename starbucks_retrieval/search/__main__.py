"""Door of search: runs from stored queries, or an answer to a typed one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import CommonArguments, finish, log, parse_flags, run_command, setup_logging
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.arguments import (
    FunnelArguments,
    IndexArguments,
    MilvusArguments,
    SearchArguments,
    TypedQueryArguments,
)
from starbucks_retrieval.search.estimate.arguments import PlanArguments
from starbucks_retrieval.search.indexes.parameters import parse_parameters
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.store import size_folder

DESCRIPTION = "Find the nearest passages of every stored query and write a run; or answer a typed query."
EPILOG = (
    "starbucks search --query_reps q --passage_reps p --size 6:128 --save_ranking_to run.trec    |    "
    "starbucks search --query_reps q --passage_reps p --funnel 2:32@1000,12:768 --save_ranking_to run.trec    |    "
    "starbucks search --model_name_or_path model --passage_reps p --size 6:128 --corpus_path corpus.jsonl --interactive"
)


def main(argv: Sequence[str]) -> None:
    """Parse, search, print a summary."""
    classes = [SearchArguments, FunnelArguments, IndexArguments, MilvusArguments]
    classes += [TypedQueryArguments, PlanArguments, DryRunArguments, CommonArguments]
    (asked, funnel, index, milvus, typed, planned, trying, common), _ = parse_flags(
        classes, argv, "starbucks search", DESCRIPTION, EPILOG
    )
    setup_logging(common)
    if planned.plan:
        _plan(asked, typed, planned, common)
        return
    if not asked.passage_reps:
        raise UserError("--passage_reps is missing", "see starbucks search --help")
    if typed.query is not None or typed.interactive:
        _answer(asked, funnel, typed, common)
    else:
        _rank(asked, funnel, index, milvus, trying, common)


def _plan(asked: SearchArguments, typed: TypedQueryArguments, planned: PlanArguments, common: CommonArguments) -> None:
    from starbucks_retrieval.search.estimate.table import plan_search

    made = plan_search(
        planned,
        asked.sizes or asked.size,
        passage_reps=asked.passage_reps,
        model_name_or_path=typed.model_name_or_path,
        depth=asked.depth,
        max_memory=asked.max_memory,
        threads=asked.threads,
        seed=common.seed,
    )
    finish(common, str(made), made.to_json())


def _rank(
    asked: SearchArguments,
    funnel: FunnelArguments,
    index: IndexArguments,
    milvus: MilvusArguments,
    trying: DryRunArguments,
    common: CommonArguments,
) -> None:
    queries, passages, target = asked.query_reps, asked.passage_reps, asked.save_ranking_to
    for name, value in (("query_reps", queries), ("save_ranking_to", target)):
        if not value:
            raise UserError(f"--{name} is missing", "give it, or type a query with --query or --interactive")
    assert queries and passages and target
    if funnel.funnel == "auto" and funnel.qrels is None:
        raise UserError("--qrels is missing", "--funnel auto is chosen by judgements of these queries")
    if asked.sizes and (funnel.funnel or index.approximate):
        raise UserError("--sizes goes with exact search only", "name one size, or a funnel")
    if trying.dry_run:
        from starbucks_retrieval.search.dry_run import preview

        preview(asked, funnel, index, milvus).show(common)
        return
    from starbucks_retrieval.search.api import DEPTH, choose, search

    options: dict[str, Any] = {
        name: value for name, value in vars(asked).items() if name not in ("sizes", "save_ranking_to")
    }
    options |= {
        "measure_recall": index.measure_recall,
        "uri": milvus.uri,
        "collection": milvus.collection,
        "milvus_index": milvus.milvus_index,
        "milvus_token": milvus.milvus_token,
        "index_search": parse_parameters(index.index_search),
    }
    figures: dict[str, Any] = {}
    if funnel.funnel == "auto":
        assert funnel.qrels is not None
        choice = choose(
            queries,
            passages,
            funnel.qrels,
            target=funnel.target,
            depth=DEPTH if asked.depth is None else asked.depth,
            max_memory=asked.max_memory,
            threads=asked.threads,
            override=asked.override,
        )
        log.info("%s", choice)
        figures["choice"] = choice.to_json()
        options["funnel"] = choice.funnel
    elif funnel.funnel:
        options["funnel"] = funnel.funnel
    if asked.sizes:
        summaries = []
        for size in _several(asked):
            path = Path(target) / f"{size_folder(size)}.trec"
            path.parent.mkdir(parents=True, exist_ok=True)
            summaries.append(search(**options | {"save_ranking_to": path, "size": size}))
        finish(common, "\n".join(map(str, summaries)), {"runs": [summary.to_json() for summary in summaries]})
        return
    with tempfile.TemporaryDirectory() as temporary:
        if index.approximate:
            folder, told = _index(asked, options.get("funnel"), index, Path(temporary), common)
            figures |= told
            options |= {
                "index": folder,
                "rescore": index.rescore,
                "index_checksum": not index.skip_index_checksum,
            }
        summary = search(**options, save_ranking_to=target)
    finish(common, str(summary), summary.to_json() | figures)


def _several(asked: SearchArguments) -> Sizes:
    from starbucks_retrieval.search.pairs import searchable

    there = Sizes(searchable(asked.query_reps or "", asked.passage_reps or ""))
    return Sizes.parse(asked.sizes or "all", there)


def _index(
    asked: SearchArguments, funnel: Any, index: IndexArguments, temporary: Path, common: CommonArguments
) -> tuple[Path, dict[str, Any]]:
    """The folder of the index to search in, built if it was asked for by factory; and figures of building."""
    if index.load_index:
        return Path(index.load_index), {}
    from starbucks_retrieval.search.api import asked_size
    from starbucks_retrieval.search.funnel.funnel import Funnel
    from starbucks_retrieval.search.indexes import build_index
    from starbucks_retrieval.search.pairs import open_pair

    steps = Funnel.parse(funnel) if isinstance(funnel, str) else funnel
    size = steps.sizes[0] if steps is not None else asked_size(asked.size, asked.layer, asked.dim)
    _, passages = open_pair(asked.query_reps or "", asked.passage_reps or "", size)
    folder = Path(index.save_index) if index.save_index else temporary / "index"
    built = build_index(
        next(iter(passages.values())),
        index.index or "",
        folder,
        parameters=parse_parameters(index.index_build),
        train_sample=index.train_sample,
        seed=common.seed,
        threads=asked.threads,
        max_memory=asked.max_memory,
        overwrite=index.overwrite,
    )
    log.info("%s", built)
    return folder, {"index_summary": built.to_json()}


def _answer(
    asked: SearchArguments, funnel: FunnelArguments, typed: TypedQueryArguments, common: CommonArguments
) -> None:
    if not typed.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "a typed query is encoded by the model of the passages")
    if funnel.funnel == "auto":
        raise UserError("--funnel auto is chosen with stored queries", "choose it first, then name its steps here")
    from starbucks_retrieval.search.api import asked_size
    from starbucks_retrieval.search.interactive import converse, show
    from starbucks_retrieval.search.searcher import Searcher

    size = asked_size(asked.size, asked.layer, asked.dim)
    if size is not None and funnel.funnel:
        raise UserError("--funnel and --size (or --layer, --dim) contradict each other", "give one of them")
    searcher = Searcher(
        typed.model_name_or_path,
        asked.passage_reps or "",
        typed.corpus_path,
        size=size,
        funnel=funnel.funnel,
        max_memory=asked.max_memory,
        device=asked.device,
    )
    if typed.query is not None:
        answer = searcher.answer(typed.query, typed.hits)
        if not common.json:
            print(show(answer.hits))
        took = {"encode_ms": round(answer.encode_ms, 1), "search_ms": round(answer.search_ms, 1)}
        finish(
            common,
            f"{len(answer.hits)} of {searcher.store.count} passages, {searcher.funnel}, "
            f"{took['encode_ms']} ms to encode, {took['search_ms']} ms to search",
            {"query": typed.query, "hits": [hit.to_json() for hit in answer.hits], **took},
        )
    if typed.interactive:
        converse(searcher, typed.hits)


if __name__ == "__main__":
    sys.exit(run_command(main))
