"""Exact search by inner product: FAISS or another engine proposes, exact scores decide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.plan import FEW, Plan, make_plan, parse_bytes
from starbucks_retrieval.search.scores import best, double_error, score_candidates, score_rows, single_error
from starbucks_retrieval.store import EmbeddingStore

_MUCH = 1e10  # multiplications that take FAISS longer than loading torch does

Results = tuple[np.ndarray, np.ndarray]


class CandidateGenerator(Protocol):
    """What looks at every passage quickly. It decides how long a search takes, never what is found.

    `overfetch`: how many times `depth` candidates it wants to keep while it looks.
    """

    overfetch: int

    def propose(
        self, queries: np.ndarray, store: EmbeddingStore, plan: Plan, depth: int, label: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """One pass over the store for queries [queries, dim], all finite.

        Returns for each query distinct rows [queries, from depth to plan.candidates] and what no other row's exact
        inner product exceeds [queries]; where there is no other row, the second is not looked at.
        """
        ...


def exact_search(
    queries: np.ndarray,
    store: EmbeddingStore,
    depth: int = 1000,
    *,
    batch_size: int = 1024,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    label: str = "",
    generator: CandidateGenerator | None = None,
) -> Iterator[Results]:
    """The `depth` passages of highest inner product for each query, in batches of queries, in order.

    `queries`: [queries, dim]. Yields (rows of the store [batch, depth], scores [batch, depth] float32), ordered by
    score, then docid, both descending; a corpus smaller than `depth` gives as many as it has. A score is the inner
    product in double precision, rounded: results are the same bits for every `batch_size` (-1: as many as fit),
    `max_memory`, `threads`, `generator` (FAISS by default) and shard size. `label` shows progress. Raises UserError for
    a depth below 1, queries of another dim, NaN or infinity, and when FAISS is needed and not installed.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    check_queries(queries, store, depth, batch_size)
    depth = min(depth, store.count)
    generator = generator or FaissCandidateGenerator(threads)
    wanted = min(depth * generator.overfetch, store.count)
    plan = make_plan(parse_bytes(max_memory), batch_size, wanted, store.count, store.spec.size.dim)
    return _batches(queries, store, depth, plan, generator, label)


def import_faiss() -> Any:
    """The module faiss, or a UserError that says how to get it."""
    try:
        import faiss
    except ImportError:
        raise UserError(
            "search needs FAISS, which is not installed",
            "pip install faiss-cpu (or faiss-gpu on a CUDA machine; never both)",
        ) from None
    return faiss


def check_queries(queries: np.ndarray, store: EmbeddingStore, depth: int, batch_size: int) -> None:
    """Raise UserError for queries that cannot be searched for: another dim, NaN, a depth below 1."""
    if depth < 1:
        raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
    if batch_size < 1 and batch_size != -1:
        raise UserError(f"--batch_size {batch_size} is not a number of queries", "give 1 or more, or -1 for all")
    dim = store.spec.size.dim
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(
            f"queries of shape {queries.shape} do not fit passages of {dim} dimensions",
            "take queries and passages of one size",
        )
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(bad):
        raise UserError(
            f"the embedding of query {bad[0]} (from 0) has NaN or infinity", "check the model and its dtype"
        )
    longest = float(np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1).max(initial=0)))
    if longest * store.largest_norm > float(np.finfo(np.float32).max) / 2:
        raise UserError("these embeddings are so long that scores do not fit single precision", "encode normalised")


def _batches(
    queries: np.ndarray, store: EmbeddingStore, depth: int, plan: Plan, generator: CandidateGenerator, label: str
) -> Iterator[Results]:
    for start in range(0, len(queries), plan.batch):
        batch = queries[start : start + plan.batch]
        rows, ceiling = generator.propose(batch, store, plan, depth, label)
        complete = rows.shape[1] == store.count
        scores = score_candidates(batch, rows, store, plan.gathered)
        rows, scores = best(rows, scores, depth, store)
        if not complete:
            # Where a passage outside the list might reach the last place, look again.
            outside = ceiling + double_error(batch, store.largest_norm)
            close = np.flatnonzero(outside.astype(np.float32) >= scores[:, -1])
            for first in range(0, len(close), plan.close):
                some = close[first : first + plan.close]
                rows[some], scores[some] = _search_closely(batch[some], scores[some, -1], store, depth, plan)
        yield rows, scores


class FaissCandidateGenerator:
    """FAISS in single precision: its `plan.candidates` best rows for each query."""

    overfetch = 1

    def __init__(self, threads: int | None = None) -> None:
        self.faiss = import_faiss()
        if threads is not None:
            self.faiss.omp_set_num_threads(threads)

    def propose(
        self, queries: np.ndarray, store: EmbeddingStore, plan: Plan, depth: int, label: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Proposer."""
        scores = np.empty((len(queries), 0), np.float32)
        rows = np.empty((len(queries), 0), np.int64)
        size = plan.block_for(len(queries), store.spec.size.dim)
        for start, block in shown_blocks(store, size, np.float32, label):
            count = min(plan.candidates, len(block))
            block_scores, block_rows = self.knn(queries, block, count)
            scores = np.concatenate([scores, block_scores], axis=1)
            rows = np.concatenate([rows, block_rows + start], axis=1)
            if scores.shape[1] > plan.candidates:
                kept = np.argpartition(-scores, plan.candidates - 1, axis=1)[:, : plan.candidates]
                scores, rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)
        return rows, scores.min(axis=1) + single_error(queries, store.largest_norm)

    def knn(self, queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows of the `count` best of a block: both [queries, count]."""
        return self.faiss.knn(queries, block, count, metric=self.faiss.METRIC_INNER_PRODUCT)


class GpuFaissCandidateGenerator(FaissCandidateGenerator):
    """The same on a GPU, by faiss-gpu, whose products are in single precision too. `index`: which GPU."""

    most = 2048  # what its selection can keep

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        gpus = self.faiss.get_num_gpus() if hasattr(self.faiss, "get_num_gpus") else 0
        if index >= gpus:
            raise UserError(
                f"FAISS sees {gpus} GPUs, number {index} is asked for", "pip install faiss-gpu, or say --device cpu"
            )
        self.index = index
        self.resources = self.faiss.StandardGpuResources()

    def knn(self, queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As on a CPU. Raises UserError for more than FAISS can keep there."""
        if count > self.most:
            raise UserError(
                f"FAISS keeps at most {self.most} candidates on a GPU, this depth needs {count}",
                "lower --depth, or take --engine torch",
            )
        metric = self.faiss.METRIC_INNER_PRODUCT
        return self.faiss.knn_gpu(self.resources, queries, block, count, metric=metric, device=self.index)


def choose_engine(engine: str, device: str | None, dtype: str, queries: int, store: EmbeddingStore) -> str:
    """What `--engine auto` takes for so many queries at once; any other engine is itself.

    Loading torch takes seconds; after that it multiplies faster than FAISS and keeps the best with less ado, unless
    there are few queries (bench/search_exact.py). A device or a dtype is for torch.
    """
    if engine != "auto":
        return engine
    if device not in (None, "cpu") or dtype != "auto":
        return "torch"
    return "torch" if queries >= FEW and queries * store.count * store.spec.size.dim >= _MUCH else "faiss"


def make_candidate_generator(
    engine: str = "faiss",
    device: str | None = None,
    dtype: str = "auto",
    threads: int | None = None,
    dim: int | None = None,
) -> CandidateGenerator:
    """What `--engine`, `--device`, `--dtype` and `--threads` ask for.

    `engine`: faiss or torch; `device`: cpu, cuda or cuda:1 (FAISS takes the CPU if none is given, torch a GPU when there
    is one); `dtype`: of torch's products; `dim`: of the vectors, where it is known, as it tells which dtype is fast.
    Raises UserError for what is not known, not installed or not there.
    """
    if engine == "torch":
        from starbucks_retrieval.search.engines.torch import torch_candidate_generator

        return torch_candidate_generator(device, dtype, threads, dim)
    if engine != "faiss":
        raise UserError(f"--engine {engine} is not known", "take auto, faiss or torch")
    if dtype not in ("auto", "fp32"):
        raise UserError(f"FAISS does not multiply in {dtype}", "take --engine torch")
    if device is None or device == "cpu":
        return FaissCandidateGenerator(threads)
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise UserError(f"no device {device}", "take cpu, cuda or cuda:1")
    return GpuFaissCandidateGenerator(int(match[1] or 0))


def shown_blocks(
    store: EmbeddingStore, rows: int, dtype: npt.DTypeLike, label: str
) -> Iterator[tuple[int, np.ndarray]]:
    """`store.blocks`, with progress where there is a label."""
    blocks: Any = store.blocks(rows, dtype)
    return iter(progress(blocks, -(-store.count // rows), "blocks", label) if label else blocks)


def _search_closely(queries: np.ndarray, floor: np.ndarray, store: EmbeddingStore, depth: int, plan: Plan) -> Results:
    """One more pass for queries whose last place is contested: every passage that may reach `floor` is scored exactly.

    Many equal or nearly equal passages are the usual reason; memory stays that of a block however many there are.
    """
    doubles = double_error(queries, store.largest_norm)
    slack = single_error(queries, store.largest_norm) + doubles
    exact = queries.astype(np.float64)
    rows = [np.empty(0, np.int64) for _ in queries]
    scores = [np.empty(0, np.float32) for _ in queries]
    for start, block in store.blocks(plan.block, np.float32):
        approximate = queries @ block.T  # [queries, rows of the block]
        for i, line in enumerate(approximate):
            least = np.nextafter(floor[i], np.float32(-np.inf)) - slack[i]
            near = np.flatnonzero(line >= np.nextafter(np.float32(least), np.float32(-np.inf)))
            if not len(near):
                continue
            all_rows = np.concatenate([rows[i], near + start])
            all_scores = np.concatenate([scores[i], score_rows(block, near, exact[i], doubles[i])])
            top_rows, top_scores = best(all_rows[None], all_scores[None], depth, store)
            rows[i], scores[i] = top_rows[0], top_scores[0]
            if len(rows[i]) == depth:
                floor[i] = max(floor[i], scores[i][-1])
    return np.stack(rows), np.stack(scores)
