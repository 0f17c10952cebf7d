"""Planning searches: stores opened and checked, engine and depth chosen. `--dry_run` prints a plan, else it is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import (
    FunnelArguments,
    IndexArguments,
    MilvusArguments,
    SearchArguments,
    parse_parameters,
)
from starbucks_retrieval.search.engine_choice import choose_engine
from starbucks_retrieval.search.engines import ENGINES, EngineOptions, RetrieverEngine, SearchRequest
from starbucks_retrieval.search.funnel import INDEX, Funnel, check_depth
from starbucks_retrieval.search.pairs import check_stores, cut_query_size, open_pair, open_pairs, searchable_sizes
from starbucks_retrieval.search.stores import skip_checksums, stored_sizes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import size_folder

DEPTH = 1000


@dataclass(frozen=True)
class SearchPlan:
    """One search, which writes one run.

    Args:
        request: Stores, depth, funnel and options.
        engine: A name of `ENGINES`; never `auto`.
        arguments: The flags.
        index: The flags of an approximate index.
        output: The run file.
        seed: Seed of building an index.
    """

    request: SearchRequest
    engine: str
    arguments: SearchArguments
    index: IndexArguments
    output: Path
    seed: int = 42

    @property
    def count(self) -> int:
        """Number of passages."""
        return self.request.passages[self.request.last].count

    @property
    def query_count(self) -> int:
        """Number of queries."""
        return self.request.queries[self.request.last].count

    @property
    def depth(self) -> int:
        """Passages per query in the run."""
        return min(self.request.depth, self.count)

    @property
    def queries_at_once(self) -> int:
        """Queries that are read together: --batch_size, or all for -1."""
        batch_size = self.arguments.batch_size
        return min(batch_size, self.query_count) if batch_size > 0 else self.query_count

    @property
    def size_name(self) -> str:
        """The size, such as `6:128`, or `2:64/4:64` for queries at 2:64 and passages at 4:64."""
        return self.request.size_name(self.request.last)


def check_flags(arguments: SearchArguments, funnel: FunnelArguments, index: IndexArguments) -> None:
    """Check flags before any store is opened.

    Args:
        arguments: Stores, run file and sizes.
        funnel: The funnel, if any.
        index: The approximate index, if any.

    Raises:
        UserError: A flag is missing, or two contradict each other.
    """
    for name in ("query_reps", "passage_reps", "save_ranking_to"):
        if not getattr(arguments, name):
            raise UserError(f"--{name} is missing", "give it, or give a query as text with --query or --interactive")
    if arguments.sizes and (funnel.funnel or index.approximate):
        raise UserError("--sizes goes with exact search only", "name one size, or a funnel")
    if funnel.funnel and arguments.named_size is not None:
        raise UserError("--funnel and --size (or --layer, --dim) contradict each other", "give one of them")
    size, query_size = arguments.named_size, arguments.named_query_size
    if size is not None and query_size is not None and size.dim != query_size.dim:
        raise UserError(
            f"--query_size {query_size} and --size {size} differ in dim",
            "take one dim for both: they are cut from wider stored sizes",
        )
    if index.measure_recall is not None and (not index.approximate or funnel.funnel):
        raise UserError("--measure_recall compares an index with exact search", "give --index or --load_index alone")


def plan_searches(
    arguments: SearchArguments,
    funnel: FunnelArguments,
    index: IndexArguments,
    milvus: MilvusArguments,
    *,
    seed: int = 42,
) -> list[SearchPlan]:
    """Plan one search, or one for each of `--sizes`. With `--funnel auto` the largest size stands in for the funnel.

    Args:
        arguments: Stores, size or sizes, depth, run file and engine. With several sizes the run file is a folder, which
            gets one `.trec` file for each.
        funnel: The steps of a funnel; `FunnelArguments()` for none.
        index: An approximate index; `IndexArguments()` for none.
        milvus: Address and collection of `engine="milvus"`.
        seed: Seed of building an index.

    Returns:
        Plans with open stores and the engine chosen; `run_search` runs them.

    Raises:
        UserError: Flags, stores and engine do not belong together.
    """
    check_flags(arguments, funnel, index)
    output, query_size = arguments.save_ranking_to or "", arguments.named_query_size
    if arguments.sizes:
        stored = Sizes(searchable_sizes(arguments.query_reps or "", arguments.passage_reps or "", query_size))
        return [
            _plan_one(arguments, None, index, milvus, size, Path(output) / f"{size_folder(size)}.trec", seed)
            for size in Sizes.parse(arguments.sizes, stored)
        ]
    size, steps = arguments.named_size, None
    if funnel.funnel == "auto":
        size = max(sizes_in_common(arguments), default=None)
    elif funnel.funnel is not None:
        steps = Funnel.parse(funnel.funnel)
        code = steps.steps[0].code
        if code == INDEX and not index.approximate:
            raise UserError(f"--funnel {steps} asks an index, and none is given", "name its folder with --load_index")
        if code and code != INDEX and index.approximate:
            what = f"--funnel {steps} scans {code} codes, and an index would too"
            raise UserError(what, "omit the index, or the code")
    return [_plan_one(arguments, steps, index, milvus, size, Path(output), seed)]


def sizes_in_common(arguments: SearchArguments) -> list[Size]:
    """Return the stored sizes of the queries at which stored passages can be searched, ascending.

    Args:
        arguments: `query_reps` and `passage_reps` name the stores. With `query_size`, the sizes are those of passages.

    Raises:
        UserError: There is no store at one of the two paths, or it cannot be opened.
    """
    queries, passages = arguments.query_reps or "", arguments.passage_reps or ""
    query_size = arguments.named_query_size
    found = searchable_sizes(queries, passages, query_size)
    return found if query_size is not None else [size for size in found if size in stored_sizes(queries)]


def _plan_one(
    arguments: SearchArguments,
    steps: Funnel | None,
    index: IndexArguments,
    milvus: MilvusArguments,
    size: Size | None,
    output: Path,
    seed: int,
) -> SearchPlan:
    queries, passages = arguments.query_reps or "", arguments.passage_reps or ""
    query_size = arguments.named_query_size
    if steps is None:
        if query_size is not None and size is not None:  # several sizes: each takes its dims of the queries
            query_size = cut_query_size(query_size, size)
        query_stores, passage_stores = open_pair(queries, passages, size, query_size)
    else:
        steps = steps.at_depth(arguments.depth, DEPTH).with_queries_at(query_size)
        query_stores, passage_stores = open_pairs(queries, passages, steps.sizes, steps.query_sizes)
    check_stores(query_stores, passage_stores, arguments.override)
    if arguments.skip_checksum:
        skip_checksums(query_stores, passage_stores)
    requested = steps.depth if steps is not None else arguments.depth
    depth = check_depth(DEPTH if requested is None else requested)
    same = ("device", "dtype", "threads", "batch_size", "ray_workers", "ray_address")
    options = EngineOptions(
        max_memory=arguments.memory_bytes,
        index_search=parse_parameters(index.index_search),
        checksum=not arguments.skip_checksum,
        **{name: getattr(arguments, name) for name in same},
        **vars(milvus),
    )
    request = SearchRequest(query_stores, passage_stores, depth, steps, index.approximate, passages, options)
    plan = SearchPlan(request, arguments.engine, arguments, index, output, seed)
    first = passage_stores[request.first]
    count, at_once = plan.query_count, plan.queries_at_once
    engine = choose_engine(arguments.engine, arguments.device, arguments.dtype, count, first, at_once)
    made = ENGINES[engine]()
    if isinstance(made, RetrieverEngine):
        made.check(request)
    if depth > plan.count:
        log.warning("depth %d is more than the %d passages: each query gets all", depth, plan.count)
    return replace(plan, engine=engine)
