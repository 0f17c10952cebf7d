"""Search stores of queries against stores of passages, and write a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.exact import exact_search, import_faiss
from starbucks_retrieval.search.plan import parse_bytes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, check_same, open_store
from starbucks_retrieval.texts.runs import SaveFormat, write_run

Results = list[tuple[str, np.float32]]


@dataclass(frozen=True)
class SearchSummary:
    """What one search did. `depth`: passages per query in the run; `seconds`: reading and writing included."""

    queries: int
    passages: int
    size: str
    depth: int
    seconds: float
    path: str

    def __str__(self) -> str:
        return (
            f"{self.queries} queries against {self.passages} passages at {self.size}: "
            f"{self.depth} each in {self.seconds:.1f} s, written to {self.path}"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def search(
    query_reps: str | Path,
    passage_reps: str | Path,
    save_ranking_to: str | Path,
    depth: int = 1000,
    *,
    layer: int | None = None,
    dim: int | None = None,
    size: Size | str | None = None,
    save_format: SaveFormat = "trec",
    batch_size: int = 1024,
    max_memory: str | int = "2GB",
    threads: int | None = None,
) -> SearchSummary:
    """Find the `depth` passages of highest inner product for every stored query and write them as a run.

    `query_reps` and `passage_reps` name what encode wrote: a size's folder, its parent together with `size` (or
    `layer` and `dim`), or a pattern. Passages are streamed and results written as they come: memory stays under about
    `max_memory`. Raises UserError for stores that do not belong together, and for anything `exact_search` refuses.
    """
    began = time.monotonic()
    wanted = asked_size(size, layer, dim)
    parse_bytes(max_memory)
    import_faiss()
    queries, passages = open_store(query_reps, wanted), open_store(passage_reps, wanted)
    if (queries.spec.kind, passages.spec.kind) == ("passages", "queries"):
        raise UserError("--query_reps holds passages and --passage_reps holds queries", "swap the two")
    check_same(queries.spec, passages.spec)
    if depth > passages.count:
        log.warning("depth %d is more than the %d passages there are: each query gets all", depth, passages.count)
    results = _search(queries, passages, depth, batch_size, max_memory, threads)
    write_run(save_ranking_to, results, "starbucks", save_format)
    return SearchSummary(
        queries=queries.count,
        passages=passages.count,
        size=str(passages.spec.size),
        depth=min(depth, passages.count),
        seconds=time.monotonic() - began,
        path=str(save_ranking_to),
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


def _search(
    queries: EmbeddingStore,
    passages: EmbeddingStore,
    depth: int,
    batch_size: int,
    max_memory: str | int,
    threads: int | None,
) -> Iterator[tuple[str, Iterable[tuple[str, np.float32]]]]:
    at_once = batch_size if batch_size > 0 else queries.count
    done = 0
    for _, block in queries.blocks(at_once, np.float32):
        label = f"queries {done + 1} to {done + len(block)} of {queries.count}"
        found = exact_search(
            block, passages, depth, batch_size=batch_size, max_memory=max_memory, threads=threads, label=label
        )
        for rows, scores in found:
            query_ids = queries.ids(np.arange(done, done + len(rows)))
            # Queries share many of their passages: each id is read and decoded once.
            distinct, places = np.unique(rows, return_inverse=True)
            docids = np.array(passages.ids(distinct), dtype=object)[places.reshape(rows.shape)]
            for query_id, own_ids, own_scores in zip(query_ids, docids.tolist(), scores):
                yield query_id, zip(own_ids, own_scores)
            done += len(rows)
