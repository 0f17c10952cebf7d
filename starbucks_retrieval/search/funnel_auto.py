"""`--funnel auto`: choosing a funnel over stores, with the dims, codes and indexes that they offer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.data.collection import read_qrels
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, IndexArguments, SearchArguments
from starbucks_retrieval.search.engine_choice import choose_engine
from starbucks_retrieval.search.engines import EngineOptions, make_candidate_generator
from starbucks_retrieval.search.funnel import CODES
from starbucks_retrieval.search.funnel_choice import FunnelChoice, choose_funnel
from starbucks_retrieval.search.funnel_first_steps import find_indexes, index_steps, indexed_sizes
from starbucks_retrieval.search.funnel_trials import TIMED
from starbucks_retrieval.search.indexes.manifest import read_manifest
from starbucks_retrieval.search.pairs import check_stores, cut_query_size, open_pairs
from starbucks_retrieval.search.plan import DEPTH, sizes_in_common
from starbucks_retrieval.search.stores import skip_checksums
from starbucks_retrieval.sizes import Size

DIMS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def choose_stored_funnel(
    arguments: SearchArguments, funnel: FunnelArguments, index: IndexArguments | None = None, seed: int = 42
) -> FunnelChoice:
    """Choose a funnel over the sizes that are stored for both queries and passages, and dims of the deepest layer.

    Indexes that were built beside the passages are tried as first steps; none is built.

    Args:
        arguments: Stores, depth, engine, queries at once, memory and threads.
        funnel: `qrels` of the queries, if any, and the `target` share of the full size's quality to keep.
        index: `load_index` names the only index to try, `index_search` the only parameters. With `index`, the factory of
            one that is built over the first size when the funnel is chosen, neither indexes nor codes are tried.
        seed: As in `choose_funnel`.

    Raises:
        UserError: There is no such size, `choose_funnel` refuses queries or judgements, or a named index does not fit.
    """
    index = index or IndexArguments()
    stored = sizes_in_common(arguments)
    if not stored:
        raise UserError("queries and passages have no size in common", "encode both at the same --sizes")
    full = max(stored)
    milvus = arguments.engine == "milvus"  # holds the stored sizes only
    cuts = () if milvus else [Size(full.layer, dim) for dim in DIMS if dim < full.dim]
    named = Path(index.load_index) if index.load_index else None
    built = {named: read_manifest(named)} if named is not None else {}
    if not (milvus or index.index or named):
        built = find_indexes(arguments.passage_reps or "")
    sizes = sorted({*stored, *cuts, *indexed_sizes(built, stored)})
    at = arguments.named_query_size
    of_queries = {size: cut_query_size(at, size) for size in sizes} if at is not None else None
    queries, passages = open_pairs(arguments.query_reps or "", arguments.passage_reps or "", sizes, of_queries)
    check_stores(queries, passages, arguments.override)
    if arguments.skip_checksum:
        skip_checksums(queries, passages)
    rows = np.arange(queries[full].count)
    options = EngineOptions(device=arguments.device, dtype=arguments.dtype, threads=arguments.threads)
    at_once = min(TIMED, len(rows), arguments.batch_size if arguments.batch_size > 0 else TIMED)
    engine = arguments.engine if arguments.engine in ("faiss", "torch") else "auto"
    engine = choose_engine(engine, arguments.device, arguments.dtype, at_once, passages[full])
    unchecked = arguments.skip_checksum or index.skip_index_checksum
    indexes = index_steps(built, passages, index.index_search, named=named is not None, checksum=not unchecked)
    choice = choose_funnel(
        {size: store.vectors(rows).astype(np.float32) for size, store in queries.items()},
        queries[full].ids(rows),
        passages,
        read_qrels(funnel.qrels) if funnel.qrels else None,
        target=funnel.target,
        depth=DEPTH if arguments.depth is None else arguments.depth,
        batch_size=arguments.batch_size,
        max_memory=arguments.memory_bytes,
        threads=arguments.threads,
        codes=() if milvus or (index.index and index.approximate) else tuple(CODES),
        indexes=indexes,
        generator=make_candidate_generator(engine, options, full.dim),
        seed=seed,
    )
    log.info("%s", choice)
    return choice
