"""Search stores of queries against stores of passages, and write runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data.qrels import read_qrels
from starbucks_retrieval.data.run_writer import SaveFormat, write_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import choose_engine, make_candidate_generator
from starbucks_retrieval.search.funnel.choice import FunnelChoice, choose_funnel
from starbucks_retrieval.search.funnel.funnel import Funnel, FunnelStep, check_together
from starbucks_retrieval.search.funnel.passage_slice import open_sizes, stored_sizes
from starbucks_retrieval.search.indexes import RESCORE, open_index, recall, sample_rows
from starbucks_retrieval.search.pairs import open_pair, open_pairs, searchable
from starbucks_retrieval.search.plan import parse_bytes
from starbucks_retrieval.search.retrievers import (
    Retriever,
    exact_retriever,
    funnel_retriever,
    index_retriever,
    milvus_retriever,
    ray_retriever,
)
from starbucks_retrieval.sizes import Size, pair_name
from starbucks_retrieval.store import EmbeddingStore, check_same

Results = list[tuple[str, np.float32]]
DEPTH = 1000


@dataclass(frozen=True)
class SearchSummary:
    """What one search did. `depth`: passages per query in the run; `seconds`: reading and writing included.

    `size` is `2:64/4:64` for queries at 2:64 and passages at 4:64.

    `funnel`, `index`: what was used besides exact search, or None; `recall`: share of the exact results found.
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

    def __str__(self) -> str:
        through = f" through {self.funnel}" if self.funnel else f" through {self.index}" if self.index else ""
        found = "".join(f"; {name} {share:.4f}" for name, share in (self.recall or {}).items())
        most = "up to " if self.index else ""  # where an index looks, there may be fewer
        return (
            f"{self.queries} queries against {self.passages} passages at {self.size}{through}: "
            f"{most}{self.depth} each in {self.seconds:.1f} s, written to {self.path}{found}"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def search(
    query_reps: str | Path,
    passage_reps: str | Path,
    save_ranking_to: str | Path,
    depth: int | None = None,
    *,
    layer: int | None = None,
    dim: int | None = None,
    size: Size | str | None = None,
    funnel: Funnel | str | None = None,
    index: str | Path | None = None,
    index_search: Mapping[str, Any] | None = None,
    rescore: int = RESCORE,
    index_checksum: bool = True,
    measure_recall: int | None = None,
    engine: str = "auto",
    device: str | None = None,
    dtype: str = "auto",
    ray_workers: int | None = None,
    ray_address: str | None = None,
    uri: str | None = None,
    collection: str = "starbucks",
    milvus_index: str = "FLAT",
    milvus_token: str | None = None,
    override: bool = False,
    save_format: SaveFormat = "trec",
    batch_size: int = 1024,
    max_memory: str | int = "2GB",
    threads: int | None = None,
) -> SearchSummary:
    """Find the `depth` (default 1000) passages of highest inner product for every stored query; write them as a run.

    `query_reps` and `passage_reps` name what encode wrote: a size's folder, its parent together with `size` (or
    `layer` and `dim`), or a pattern. Sizes are the queries', where the model has other layers for passages. Passages are streamed and results written as they come: memory stays under about
    `max_memory`. Search is exact unless `index` names the folder of a saved index or `funnel` the steps of a funnel;
    with both, the index makes the funnel's first shortlist. `engine`: faiss, torch or ray, which find the same, auto
    for the faster of the first two, or milvus at `uri`. `override` lets passages stand for queries, or queries for
    passages, as a symmetric task may want it. Raises UserError for stores that do not belong together, and for what the engines refuse.
    """
    began = now()
    wanted = asked_size(size, layer, dim)
    memory = parse_bytes(max_memory)
    steps = Funnel.parse(funnel) if isinstance(funnel, str) else funnel
    check_choices(engine, steps, wanted, index is not None, measure_recall, uri)
    if steps is None:
        queries, passages = open_pair(query_reps, passage_reps, wanted)
    else:
        steps = steps.at_depth(depth, DEPTH)
        queries, passages = open_pairs(query_reps, passage_reps, steps.sizes)
    check_stores(queries, passages, override)
    last = steps.last if steps is not None else next(iter(passages))
    count = passages[last].count
    asked = steps.depth if steps is not None else depth
    kept = DEPTH if asked is None else asked
    if kept > count:
        log.warning("depth %d is more than the %d passages there are: each query gets all", kept, count)
    first = passages[steps.sizes[0]] if steps is not None else passages[last]
    saved = open_index(Path(index), first, checksum=index_checksum) if index is not None else None
    at_once = batch_size if batch_size > 0 else queries[last].count
    options: dict[str, Any] = {"max_memory": memory, "threads": threads}
    parameters = index_search or {}
    engine = choose_engine(engine, device, dtype, min(at_once, queries[last].count), first)
    if engine == "milvus":
        assert uri is not None
        refuse_two_sizes(passages)
        # All stored sizes go into one collection, so that the next search finds its own there.
        loaded = open_sizes(passage_reps, sorted({*stored_sizes(passage_reps), *passages}))
        once = steps or Funnel((FunnelStep(last, kept),))
        way = milvus_retriever(
            queries, loaded, once, uri, collection, parameters, index=milvus_index, token=milvus_token
        )
    elif engine == "ray":
        # Each worker proposes by FAISS, or by torch where a device or a dtype asks for it.
        inner = "faiss" if device is None and dtype == "auto" else "torch"
        ray = {"workers": ray_workers, "address": ray_address, "engine": inner, "device": device, "dtype": dtype}
        way = ray_retriever(last, passages[last], kept, batch_size=batch_size, max_memory=memory, **ray)
    elif steps is not None:
        generator = make_candidate_generator(engine, device, dtype, threads, first.spec.size.dim)
        way = funnel_retriever(
            passages, steps, saved, parameters, generator=generator, batch_size=batch_size, **options
        )
    elif saved is not None:
        way = index_retriever(last, saved, kept, rescore, parameters, **options)
    else:
        generator = make_candidate_generator(engine, device, dtype, threads, last.dim)
        way = exact_retriever(last, passages[last], kept, generator, batch_size=batch_size, **options)
    try:
        # What tells evaluate the size of a run.
        tag = f"starbucks-{steps or pair_name(last, passages[last].spec.size)}"
        write_run(save_ranking_to, _results(way, queries, at_once), tag, save_format)
    finally:
        way.close()
    found = None
    if measure_recall is not None and saved is not None:
        some = queries[last].vectors(sample_rows(queries[last].count, measure_recall, 42)).astype(np.float32)
        found = recall(saved, some, min(kept, count), parameters=parameters, rescore=rescore, **options)
    return SearchSummary(
        queries=queries[last].count,
        passages=count,
        size=pair_name(last, passages[last].spec.size),
        depth=min(kept, count),
        seconds=seconds_since(began),
        path=str(save_ranking_to),
        funnel=str(steps) if steps is not None else None,
        index=saved.manifest.factory if saved is not None else None,
        recall=found,
    )


def choose(
    query_reps: str | Path,
    passage_reps: str | Path,
    qrels: str,
    *,
    target: float = 0.99,
    depth: int = 10,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    override: bool = False,
) -> FunnelChoice:
    """The cheapest funnel over the stored sizes that keeps `target` of the full size's nDCG@10 on judged queries."""
    sizes = [size for size in searchable(query_reps, passage_reps) if size in stored_sizes(query_reps)]
    if not sizes:
        raise UserError("queries and passages have no size in common", "encode both at the same --sizes")
    queries, passages = open_pairs(query_reps, passage_reps, sizes)
    check_stores(queries, passages, override)
    every = np.arange(queries[sizes[-1]].count)
    vectors = {size: store.vectors(every).astype(np.float32) for size, store in queries.items()}
    ids = queries[sizes[-1]].ids(every)
    return choose_funnel(
        vectors, ids, passages, read_qrels(qrels), target=target, depth=depth, max_memory=max_memory, threads=threads
    )


def check_choices(
    engine: str,
    steps: Funnel | None,
    size: Size | None,
    indexed: bool,
    measure_recall: int | None,
    uri: str | None,
) -> None:
    """Raise UserError for an engine, a funnel, a size and an index that contradict each other."""
    if steps is not None and size is not None:
        raise UserError("--funnel and --size (or --layer, --dim) contradict each other", "give one of them")
    if (steps or indexed) and engine == "ray":
        raise UserError("--engine ray searches exactly at one size", "leave out --funnel and the index, or the engine")
    if measure_recall is not None and (not indexed or steps is not None):
        raise UserError("--measure_recall compares an index with exact search", "give --index or --load_index alone")
    if indexed and engine == "milvus":
        raise UserError("--engine milvus has indexes of its own", "take --milvus_index")
    if engine == "milvus" and uri is None:
        raise UserError("--uri is missing", "name a file such as milvus.db, or a server: http://host:19530")


def check_stores(
    queries: Mapping[Size, EmbeddingStore], passages: Mapping[Size, EmbeddingStore], override: bool = False
) -> None:
    """Raise UserError unless these are queries and passages of one model at sizes that go together.

    Both are told by the size of the queries.

    With `override` the one may stand for the other. A store that was imported is what its import was told that it is.
    """
    for size, store in passages.items():
        own = queries.get(size) or next(iter(queries.values()))
        if not override:
            _check_kinds(own.spec.kind, store.spec.kind)
        check_same(own.spec, store.spec)
    check_together(queries, queries)
    check_together(passages, passages)


def refuse_two_sizes(passages: Mapping[Size, EmbeddingStore]) -> None:
    """Raise UserError where passages are of another size than the queries, by whose size they are told."""
    for size, store in passages.items():
        if store.spec.size != size:
            raise UserError(
                f"--engine milvus searches queries and passages at one size, these are {size} and {store.spec.size}",
                "take another engine",
            )


def _check_kinds(queries: str, passages: str) -> None:
    symmetric = "--override searches with them all the same, for tasks whose two sides are of one kind"
    if (queries, passages) == ("passages", "queries"):
        raise UserError("--query_reps holds passages and --passage_reps holds queries", "swap the two")
    if queries != "queries":
        raise UserError(
            "--query_reps holds passages: they were encoded without --encode_is_query",
            f"encode (or store import) the queries again with --encode_is_query; {symmetric}",
        )
    if passages != "passages":
        raise UserError(
            "--passage_reps holds queries: they were encoded with --encode_is_query",
            f"encode (or store import) the passages again without --encode_is_query; {symmetric}",
        )


def asked_size(size: Size | str | None, layer: int | None, dim: int | None) -> Size | None:
    """The size named by `6:128`, or by a layer and a dim; None when none is. Raises UserError for half of one."""
    if (layer is None) != (dim is None):
        raise UserError("--layer and --dim go together", "give both, or --size layer:dim")
    named = Size.parse(size) if isinstance(size, str) else size
    pair = Size(layer, dim) if layer is not None and dim is not None else None
    if named and pair and named != pair:
        raise UserError(f"--size {named} contradicts --layer and --dim {pair}", "give one of the two")
    return named or pair


def _results(
    way: Retriever, queries: Mapping[Size, EmbeddingStore], at_once: int
) -> Iterator[tuple[str, Iterable[tuple[str, np.float32]]]]:
    done = 0
    total = queries[way.sizes[-1]].count
    for blocks in zip(*(queries[size].blocks(at_once, np.float32) for size in way.sizes), strict=True):
        block = {size: vectors for size, (_, vectors) in zip(way.sizes, blocks)}
        stop = done + len(next(iter(block.values())))
        for found_rows, scores in way.find(block, f"queries {done + 1} to {stop} of {total}"):
            rows = list(found_rows)
            query_ids = queries[way.sizes[-1]].ids(np.arange(done, done + len(rows)))
            # Queries share many of their passages: each id is read and decoded once.
            distinct, places = np.unique(np.concatenate(rows), return_inverse=True)
            docids = np.array(way.names.ids(distinct), dtype=object)[places]
            edges = np.cumsum([len(own) for own in rows])[:-1]
            for query_id, own_ids, own_scores in zip(query_ids, np.split(docids, edges), scores):
                yield query_id, zip(own_ids.tolist(), own_scores)
            done += len(rows)
