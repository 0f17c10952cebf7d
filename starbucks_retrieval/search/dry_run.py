"""search --dry_run: stores, kind of search, passes, bytes of the run, and the time of exact search, from the plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.cli import readable
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, SearchArguments
from starbucks_retrieval.search.engines import ENGINES, CandidateEngine, plan_memory
from starbucks_retrieval.search.estimate import estimate
from starbucks_retrieval.search.machine import MachineRates, measure_machine
from starbucks_retrieval.search.plan import SearchPlan
from starbucks_retrieval.store import EmbeddingStore

_SAMPLED_IDS = 100  # whose length is measured
_LINE_BYTES = 34  # of a line of a run besides its ids: Q0, rank, score, tag, separators
_MEASURE_SECONDS = 0.8


def preview(plans: Sequence[SearchPlan], funnel: FunnelArguments) -> Preview:
    """Describe what running the plans would do; nothing is searched or written.

    Args:
        plans: What `plan_searches` returned.
        funnel: With `auto`, the funnel of the only plan is not chosen yet.
    """
    measure = functools.cache(measure_machine)  # plans of several sizes ask for the same
    searches = [_describe(plan, measure) for plan in plans]
    if funnel.funnel == "auto":
        kept = f"by {funnel.qrels} to keep {funnel.target:g} of nDCG@10"
        kept = kept if funnel.qrels else f"to keep {funnel.target:g} of the exact top 10"
        searches[0]["way"] = f"a funnel, chosen {kept}"
        searches[0]["seconds"] = None
    arguments = plans[0].arguments
    seconds = [one["seconds"] for one in searches]
    figures = {
        "searches": searches,
        "bytes": sum(one["bytes"] for one in searches),
        "seconds": None if None in seconds else sum(seconds),
        "max_memory": arguments.memory_bytes,
        "free_bytes": free_bytes(arguments.save_ranking_to or ""),
    }
    return Preview(_lines(figures, arguments), figures)


def _describe(plan: SearchPlan, measure: Callable[..., MachineRates]) -> dict[str, Any]:
    request, count = plan.request, plan.query_count
    store, funnel, options = request.passages[request.last], request.funnel, request.options
    engine = ENGINES[plan.engine]()
    scanned = isinstance(engine, CandidateEngine) and not request.indexed
    if isinstance(engine, CandidateEngine) and options.device is not None:
        engine.candidate_generator(options)  # raises for a device that is not there
    shortlist = (funnel.steps[0].keep or plan.depth) if funnel is not None else plan.depth
    memory = plan_memory(options.max_memory, options.batch_size, shortlist, store.count, request.first.dim)
    batch = min(count, memory.batch)
    line = _mean_id_bytes(request.queries[request.last]) + _mean_id_bytes(store) + _LINE_BYTES
    timed = scanned and funnel is None and options.device in (None, "cpu")
    return {
        "queries": count,
        "passages": store.count,
        "sizes": {request.size_name(size): _vector_bytes(held) for size, held in request.passages.items()},
        "way": _kind(plan),
        "depth": plan.depth,
        "passes": -(-count // batch) if scanned else None,
        "lines": count * plan.depth,
        "bytes": round(count * plan.depth * line),
        "output": str(plan.output),
        "exists": plan.output.exists(),
        "seconds": _seconds(store, count, batch, plan, measure) if timed else None,
        "engine": plan.engine,
    }


def _vector_bytes(store: EmbeddingStore) -> int:
    return store.count * store.spec.size.dim * store.dtype.itemsize


def _mean_id_bytes(store: EmbeddingStore) -> float:
    ids = store.ids(np.arange(min(_SAMPLED_IDS, store.count)))
    return sum(len(docid.encode()) for docid in ids) / len(ids)


def _kind(plan: SearchPlan) -> str:
    index, funnel = plan.index, plan.request.funnel
    parts = [f"funnel {funnel}"] if funnel is not None else []
    if index.load_index:
        parts.append(f"index in {index.load_index}")
    elif index.approximate:
        kept = f"built in {index.save_index} unless it exists" if index.save_index else "built and then deleted"
        parts.append(f"index {index.index}, {kept}")
    at = f" at {plan.request.options.uri}" if plan.engine == "milvus" else ""
    return f"{', '.join(parts or ['exact'])}; by {plan.engine}{at}"


def _seconds(
    store: EmbeddingStore, queries: int, batch: int, plan: SearchPlan, measure: Callable[..., MachineRates]
) -> float | None:
    """Estimate the seconds of exact search by FAISS on this machine; None without FAISS."""
    try:
        machine = measure(
            _MEASURE_SECONDS,
            depth=plan.depth,
            batches=(batch,),
            store_dtype=store.dtype.name,
            threads=plan.arguments.threads,
        )
    except UserError:
        return None
    flat = estimate(machine, store.count, [store.spec.size], max_memory=plan.request.options.max_memory)[0]
    return queries * flat.milliseconds[batch] / 1000


def _lines(figures: Mapping[str, Any], arguments: SearchArguments) -> list[tuple[str, str]]:
    lines = []
    for one in figures["searches"]:
        held = ", ".join(f"{readable(count)} at {size}" for size, count in one["sizes"].items())
        lines.append(("queries", f"{one['queries']:,} from {arguments.query_reps}"))
        lines.append(("passages", f"{one['passages']:,} from {arguments.passage_reps}: {held}"))
        lines.append(("search", one["way"]))
        if one["passes"] is not None:
            which = "first" if len(one["sizes"]) > 1 else "only"
            lines.append(("passes", f"{one['passes']} over the passages of the {which} size"))
        compressed = " before gzip" if one["output"].endswith(".gz") else ""
        replaced = ", which is replaced" if one["exists"] else ""
        each = f"{one['lines']:,} lines ({one['depth']} a query), about {readable(one['bytes'])}{compressed}"
        lines.append(("writes", f"{each}, to {one['output']}{replaced}"))
    lines.append(("memory", f"up to {readable(figures['max_memory'])} for vectors and lists (--max_memory)"))
    if figures["free_bytes"] is not None:
        lines.append(("disk", f"{readable(figures['free_bytes'])} free there"))
    remark = "; search --plan compares exact search and funnels"
    if figures["seconds"] is not None:
        by_torch = any(one["engine"] == "torch" for one in figures["searches"])
        remark = " by FAISS; torch takes less" if by_torch else ""
    return [*lines, ("time", duration(figures["seconds"]) + remark)]
