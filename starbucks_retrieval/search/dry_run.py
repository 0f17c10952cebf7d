"""What `search` would do: stores, way, passes, bytes of the run, and for exact search about how long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.api import DEPTH, asked_size, check_choices, check_stores, refuse_two_sizes
from starbucks_retrieval.search.arguments import FunnelArguments, IndexArguments, MilvusArguments, SearchArguments
from starbucks_retrieval.search.engines.exact import choose_engine, make_candidate_generator
from starbucks_retrieval.search.funnel.funnel import Funnel
from starbucks_retrieval.search.funnel.passage_slice import stored_sizes
from starbucks_retrieval.search.pairs import open_pair, open_pairs, searchable
from starbucks_retrieval.search.plan import make_plan, parse_bytes
from starbucks_retrieval.sizes import Size, Sizes, pair_name
from starbucks_retrieval.store import EmbeddingStore, size_folder
from starbucks_retrieval.store.info import readable

_SAMPLE = 100  # ids whose length is looked at
_REST = 34  # bytes of a line of a run besides its ids: Q0, rank, score, tag, separators
_SECONDS = 0.8  # of measuring this machine


def preview(asked: SearchArguments, funnel: FunnelArguments, index: IndexArguments, milvus: MilvusArguments) -> Preview:
    """Say what `search` would do with the same flags, from the stores' manifests; nothing is searched or written.

    Raises UserError as `search` would for flags and stores that do not belong together.
    """
    queries, passages, target = asked.query_reps or "", asked.passage_reps or "", asked.save_ranking_to or ""
    if asked.sizes:
        wanted: list[Size | None] = list(Sizes.parse(asked.sizes, Sizes(searchable(queries, passages))))
        searches = [
            _one(asked, None, index, milvus, size, Path(target) / f"{size_folder(size)}.trec")
            for size in wanted
            if size
        ]
    else:
        size = asked_size(asked.size, asked.layer, asked.dim)
        steps = Funnel.parse(funnel.funnel) if funnel.funnel not in (None, "auto") else None
        if funnel.funnel == "auto":
            size = max(set(searchable(queries, passages)) & set(stored_sizes(queries)), default=None)
        searches = [_one(asked, steps, index, milvus, size, Path(target))]
    if funnel.funnel == "auto":
        searches[0]["way"] = f"a funnel, chosen by {funnel.qrels} to keep {funnel.target:g} of nDCG@10"
        searches[0]["seconds"] = None
    seconds = [one["seconds"] for one in searches]
    figures = {
        "searches": searches,
        "bytes": sum(one["bytes"] for one in searches),
        "seconds": None if None in seconds else sum(seconds),
        "max_memory": parse_bytes(asked.max_memory),
        "free_bytes": free_bytes(target),
    }
    return Preview(_lines(figures, asked), figures)


def _one(
    asked: SearchArguments,
    steps: Funnel | None,
    index: IndexArguments,
    milvus: MilvusArguments,
    size: Size | None,
    target: Path,
) -> dict[str, Any]:
    """One search, that is one run."""
    check_choices(asked.engine, steps, size, index.approximate, index.measure_recall, milvus.uri)
    if steps is None:
        queries, passages = open_pair(asked.query_reps or "", asked.passage_reps or "", size)
    else:
        steps = steps.at_depth(asked.depth, DEPTH)
        queries, passages = open_pairs(asked.query_reps or "", asked.passage_reps or "", steps.sizes)
    check_stores(queries, passages, asked.override)
    if asked.engine == "milvus":
        refuse_two_sizes(passages)
    last = steps.last if steps is not None else next(iter(passages))
    first = steps.sizes[0] if steps is not None else last
    store, many = passages[last], queries[last].count
    asked_depth = steps.depth if steps is not None else asked.depth
    if asked_depth is not None and asked_depth < 1:
        raise UserError(f"--depth {asked_depth} is below 1", "ask for at least one passage per query")
    depth = min(DEPTH if asked_depth is None else asked_depth, store.count)
    memory = parse_bytes(asked.max_memory)
    at_once = min(asked.batch_size, many) if asked.batch_size > 0 else many  # as search counts them
    engine = choose_engine(asked.engine, asked.device, asked.dtype, at_once, passages[first])
    if asked.device is not None and engine in ("faiss", "torch"):
        make_candidate_generator(engine, asked.device, asked.dtype)  # refuses what is not there
    scanned = not index.approximate and engine in ("faiss", "torch")
    shortlist = (steps.steps[0].keep or depth) if steps is not None else depth
    batch = min(many, make_plan(memory, asked.batch_size, shortlist, store.count, first.dim).batch)
    line = _mean_id(queries[last]) + _mean_id(store) + _REST
    timed = scanned and steps is None and asked.device in (None, "cpu")
    return {
        "queries": many,
        "passages": store.count,
        "sizes": {pair_name(one, held.spec.size): _vectors(held) for one, held in passages.items()},
        "way": _way(engine, steps, index, milvus),
        "depth": depth,
        "passes": -(-many // batch) if scanned else None,
        "lines": many * depth,
        "bytes": round(many * depth * line),
        "output": str(target),
        "exists": target.exists(),
        "seconds": _seconds(store, many, batch, depth, asked) if timed else None,
        "engine": engine,
    }


def _vectors(store: EmbeddingStore) -> int:
    return store.count * store.spec.size.dim * store.dtype.itemsize


def _mean_id(store: EmbeddingStore) -> float:
    names = store.ids(np.arange(min(_SAMPLE, store.count)))
    return sum(len(name.encode()) for name in names) / len(names)


def _way(engine: str, steps: Funnel | None, index: IndexArguments, milvus: MilvusArguments) -> str:
    words = [f"funnel {steps}" if steps is not None else "exact"]
    if index.load_index:
        words = [*words[:1] * (steps is not None), f"index in {index.load_index}"]
    elif index.approximate:
        place = f", built in {index.save_index} unless it is there" if index.save_index else ", built and thrown away"
        words = [*words[:1] * (steps is not None), f"index {index.index}{place}"]
    return f"{', '.join(words)}; by {engine}{f' at {milvus.uri}' if engine == 'milvus' else ''}"


def _seconds(store: EmbeddingStore, queries: int, batch: int, depth: int, asked: SearchArguments) -> float | None:
    """Of exact search by FAISS, from what this machine does in a moment; None without FAISS."""
    from starbucks_retrieval.search.estimate import estimate, measure_machine

    try:
        machine = measure_machine(
            _SECONDS, depth=depth, batches=(batch,), store_dtype=store.dtype.name, threads=asked.threads
        )
    except UserError:
        return None
    flat = estimate(machine, store.count, [store.spec.size], max_memory=asked.max_memory)[0]
    return queries * flat.milliseconds[batch] / 1000


def _lines(figures: Mapping[str, Any], asked: SearchArguments) -> list[tuple[str, str]]:
    lines = []
    for one in figures["searches"]:
        lines.append(("queries", f"{one['queries']:,} from {asked.query_reps}"))
        held = ", ".join(f"{readable(count)} at {size}" for size, count in one["sizes"].items())
        lines.append(("passages", f"{one['passages']:,} from {asked.passage_reps}: {held}"))
        lines.append(("way", one["way"]))
        if one["passes"] is not None:
            lines.append(
                (
                    "passes",
                    f"{one['passes']} over the passages of the {'first' if len(one['sizes']) > 1 else 'one'} size",
                )
            )
        packed = " before gzip" if one["output"].endswith(".gz") else ""
        there = ", which is replaced" if one["exists"] else ""
        each = f"{one['lines']:,} lines ({one['depth']} a query), about {readable(one['bytes'])}{packed}"
        lines.append(("writes", f"{each}, to {one['output']}{there}"))
    free = figures["free_bytes"]
    lines.append(("memory", f"up to {readable(figures['max_memory'])} for vectors and lists (--max_memory)"))
    if free is not None:
        lines.append(("disk", f"{readable(free)} free there"))
    more = "; search --plan compares ways"
    if figures["seconds"] is not None:
        more = "; FAISS would, torch takes less" if any(one["engine"] == "torch" for one in figures["searches"]) else ""
    return [*lines, ("time", duration(figures["seconds"]) + more)]
