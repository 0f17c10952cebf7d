"""search(): search stores of queries against stores of passages, and write runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data.run_writer import write_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import (
    FunnelArguments,
    IndexArguments,
    MilvusArguments,
    SearchArguments,
    check_parameters,
    parse_parameters,
)
from starbucks_retrieval.search.engines import (
    ENGINES,
    FEW,
    RetrievedRows,
    Retriever,
    RetrieverEngine,
    make_candidate_generator,
)
from starbucks_retrieval.search.engines.exact import FaissCandidateGenerator, exact_search
from starbucks_retrieval.search.engines.float16_scan import hold
from starbucks_retrieval.search.funnel_auto import choose_stored_funnel
from starbucks_retrieval.search.funnel_first_steps import code_shortlister
from starbucks_retrieval.search.funnel_search import Shortlister, funnel_search
from starbucks_retrieval.search.indexes import (
    IndexSummary,
    SavedIndex,
    build_index,
    open_index,
    recall,
    sample_rows,
)
from starbucks_retrieval.search.indexes.vectors import make_index
from starbucks_retrieval.search.plan import SearchPlan, plan_searches
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore


@dataclass(frozen=True)
class SearchSummary:
    """What one search did.

    Args:
        queries: Number of queries.
        passages: Number of passages.
        size: The size, such as `6:128`, or `2:64/4:64` for queries at 2:64 and passages at 4:64.
        depth: Passages per query in the run.
        seconds: Time, with reading and writing and with measuring the recall, without building an index.
        path: The run file.
        funnel: The steps of the funnel, if there was one.
        index: The factory of the approximate index, if there was one.
        recall: Share of the exact results that the index found, by cutoff.
        index_summary: Figures of building the index.
        checksums: `skipped` where vectors and ids were not compared with their checksums.
    """

    queries: int
    passages: int
    size: str
    depth: int
    seconds: float
    path: str
    funnel: str | None = None
    index: str | None = None
    recall: dict[str, float] | None = None
    index_summary: dict[str, Any] | None = None
    checksums: str | None = None

    def __str__(self) -> str:
        through = f" through {self.funnel}" if self.funnel else f" through {self.index}" if self.index else ""
        found = "".join(f"; {name} {share:.4f}" for name, share in (self.recall or {}).items())
        unchecked = "; checksums were not compared" if self.checksums else ""
        most = "up to " if self.index else ""  # an approximate index may find fewer
        return (
            f"{self.queries} queries against {self.passages} passages at {self.size}{through}: "
            f"{most}{self.depth} each in {self.seconds:.1f} s, written to {self.path}{found}{unchecked}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping without what is None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def search(
    arguments: SearchArguments,
    funnel: FunnelArguments | None = None,
    index: IndexArguments | None = None,
    milvus: MilvusArguments | None = None,
    *,
    seed: int = 42,
) -> SearchSummary:
    """Find the passages of highest inner product for every stored query, and write them as a run.

    Passages are streamed and results are written as they come: memory stays under about `max_memory`. Search is exact
    unless there is an index or a funnel; with both, the index makes the shortlist of the funnel.

    Args:
        arguments: The flags of `starbucks search`: stores, size, depth, run file, engine.
        funnel: The steps of a funnel; `auto` chooses them, by `qrels` where there are any.
        index: An approximate index to build or to open.
        milvus: Address and collection of `engine="milvus"`.
        seed: Seed of building an index.

    Raises:
        UserError: The stores do not belong together, flags contradict each other, or an engine refuses the search.

    Example:
        >>> from starbucks_retrieval.search import FunnelArguments, SearchArguments, search
        >>> arguments = SearchArguments(query_reps="emb/queries", passage_reps="emb/passages", save_ranking_to="run.trec")
        >>> summary = search(arguments, FunnelArguments("2:32@1000,12:768"))  # doctest: +SKIP
    """
    funnel = funnel or FunnelArguments()
    if arguments.sizes:
        raise UserError("--sizes names several runs", "call search once for each size")
    index = index or IndexArguments()
    if funnel.funnel == "auto":
        funnel, index = choose_stored_funnel(arguments, funnel, index, seed).flags(index)
    [plan] = plan_searches(arguments, funnel, index, milvus or MilvusArguments(), seed=seed)
    return run_search(plan)


def run_search(plan: SearchPlan) -> SearchSummary:
    """Search as planned and write the run.

    An approximate index is opened or built first; without `save_index` or `load_index`, in a temporary folder.

    Args:
        plan: A plan of `plan_searches`. With `--funnel auto`, plan with the flags of the choice.

    Returns:
        What the search did. Its `seconds` include measuring recall, where the plan asks for it.

    Raises:
        UserError: The engine or the index refuses the search, or the format of the run cannot hold an id or a score.
    """
    if plan.arguments.sizes:
        plan.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        index, built = _open_or_build_index(plan, Path(temporary)) if plan.index.approximate else (None, None)
        began = now()
        request, options = plan.request, plan.request.options
        retriever = _make_retriever(plan, index)
        try:
            unchecked = "unchecked-" if plan.arguments.skip_checksum else ""
            tag = f"starbucks-{unchecked}{request.funnel or plan.size_name}"  # evaluate reads the size from it
            results = _results(retriever, request.queries, plan.queries_at_once)
            write_run(plan.output, results, tag, plan.arguments.save_format)
        finally:
            retriever.close()
        found = None
        if plan.index.measure_recall is not None and index is not None:
            queries = request.queries[request.last]
            sample = queries.vectors(sample_rows(queries.count, plan.index.measure_recall, 42)).astype(np.float32)
            values = {"parameters": options.index_search, "rescore": plan.index.rescore, **options.limits}
            found = recall(index, sample, plan.depth, **values)
    return SearchSummary(
        queries=plan.query_count,
        passages=plan.count,
        size=plan.size_name,
        depth=plan.depth,
        seconds=seconds_since(began),
        path=str(plan.output),
        funnel=str(request.funnel) if request.funnel is not None else None,
        index=index.manifest.factory if index is not None else None,
        recall=found,
        index_summary=built.to_json() if built is not None else None,
        checksums="skipped" if plan.arguments.skip_checksum else None,
    )


def _open_or_build_index(plan: SearchPlan, temporary: Path) -> tuple[SavedIndex, IndexSummary | None]:
    index, store, built = plan.index, plan.request.passages[plan.request.first], None
    folder = Path(index.load_index or index.save_index or temporary / "index")
    if not index.load_index:
        factory, values = index.index or "", parse_parameters(index.index_build)
        empty = make_index(factory, store.spec.size.dim, plan.seed, values)
        # Building takes long: parameters of search are checked before.
        check_parameters(plan.request.options.index_search, empty.search_parameters, factory, "search")
        built = build_index(
            store,
            factory,
            folder,
            parameters=values,
            train_sample=index.train_sample,
            seed=plan.seed,
            overwrite=index.overwrite,
            **plan.request.options.limits,
        )
        log.info("%s", built)
    checksum = not (index.skip_index_checksum or plan.arguments.skip_checksum)
    return open_index(folder, store, checksum=checksum), built


def _results(
    retriever: Retriever, queries: Mapping[Size, EmbeddingStore], at_once: int
) -> Iterator[tuple[str, Iterable[tuple[str, np.float32]]]]:
    done = 0
    sizes, last = retriever.sizes, queries[retriever.sizes[-1]]
    for blocks in zip(*(queries[size].blocks(at_once, np.float32) for size in sizes), strict=True):
        vectors = {size: block for size, (_, block) in zip(sizes, blocks)}
        stop = done + len(vectors[sizes[0]])
        for found_rows, scores in retriever.retrieve(vectors, f"queries {done + 1} to {stop} of {last.count}"):
            rows = list(found_rows)
            query_ids = last.ids(np.arange(done, done + len(rows)))
            # Queries share many of their passages: each id is read and decoded once.
            distinct, positions = np.unique(np.concatenate(rows), return_inverse=True)
            docids = np.array(retriever.documents.ids(distinct), dtype=object)[positions]
            edges = np.cumsum([len(line) for line in rows])[:-1]
            for query_id, line_ids, line_scores in zip(query_ids, np.split(docids, edges), scores):
                yield query_id, zip(line_ids.tolist(), line_scores)
            done += len(rows)


def _make_retriever(plan: SearchPlan, index: SavedIndex | None) -> Retriever:
    """Return the retriever of a search, which its owner closes; `index` is over the passages of `request.first`.

    An engine that only generates candidates serves exact search, an approximate index or a funnel; a `RetrieverEngine`
    retrieves by itself.
    """
    engine, request = plan.engine, plan.request
    made = ENGINES[engine]()
    if isinstance(made, RetrieverEngine):
        return made.retriever(request)
    options, funnel, last, first = request.options, request.funnel, request.last, request.passages[request.first]
    shortlister: Shortlister | None = None
    if index is not None:
        find: Any = partial(index.search, parameters=options.index_search, **options.limits)
        if funnel is None:
            return Retriever(
                (last,), first, lambda queries, label: [find(queries[last], request.depth, rescore=plan.index.rescore)]
            )
        shortlister = partial(find, rescore=0)  # the next steps score again
    elif funnel is not None and funnel.steps[0].code:
        shortlister = code_shortlister(funnel.steps[0], first, seed=plan.seed, **options.limits)
    generator = make_candidate_generator(engine, options, first.spec.size.dim)
    if funnel is not None and shortlister is None and 0 < options.batch_size < request.queries[last].count:
        # Scanned for every batch; a narrow view would be cut again each time.
        scans = isinstance(generator, FaissCandidateGenerator) and generator.scans_float16
        hold(first, options.max_memory // 2, options.batch_size if scans else FEW)
    limits = options.limits | {"batch_size": options.batch_size, "generator": generator}

    def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
        if funnel is None:
            return exact_search(queries[last], first, request.depth, label=label, **limits)
        return funnel_search(queries, request.passages, funnel, first=shortlister, label=label, **limits)

    sizes = (last,) if funnel is None else tuple(funnel.sizes)
    return Retriever(sizes, request.passages[last], retrieve)
