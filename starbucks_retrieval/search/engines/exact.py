"""Exact search by inner product: an engine generates candidates, exact scores decide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines import (
    MAX_MEMORY,
    CandidateEngine,
    CandidateGenerator,
    Candidates,
    EngineOptions,
    MemoryPlan,
    SearchResults,
    blocks_with_progress,
    plan_memory,
)
from starbucks_retrieval.search.engines.float16_scan import NUMBERS_AT_ONCE, scan_float16, scan_is_faster
from starbucks_retrieval.search.queries import check_queries
from starbucks_retrieval.search.ranking import best, by_docid, largest
from starbucks_retrieval.search.scores import double_error, score_in_threads, score_rows, single_error
from starbucks_retrieval.store import EmbeddingStore

# FAISS multiplies matrices for batches of queries of at least so many numbers (queries x dim) and scans the passages once
# for each query of smaller ones. Its 1.15 sets the number for tens of threads; facebookresearch/faiss#5109 measured
# products to be faster from 800 numbers a thread on.
BLAS_THRESHOLD, _BLAS_THRESHOLD_PER_THREAD = 128_000, 800


def import_faiss() -> Any:
    """Return the module faiss, set to multiply matrices for small batches of queries too; another threshold is kept.

    Raises UserError with the command that installs it where it is missing.
    """
    try:
        import faiss
    except ImportError:
        raise UserError(
            "search needs FAISS, which is not installed",
            "pip install faiss-cpu (or faiss-gpu on a CUDA machine; never both)",
        ) from None
    if faiss.cvar.distance_compute_blas_threshold == BLAS_THRESHOLD:
        threshold = _BLAS_THRESHOLD_PER_THREAD * faiss.omp_get_max_threads()
        faiss.cvar.distance_compute_blas_threshold = min(BLAS_THRESHOLD, threshold)
    return faiss


def exact_search(
    queries: np.ndarray,
    store: EmbeddingStore,
    depth: int = 1000,
    *,
    batch_size: int = 1024,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
    label: str = "",
    generator: CandidateGenerator | None = None,
) -> Iterator[SearchResults]:
    """Find the passages of highest inner product for each query, in batches of queries, in order.

    Engines generate candidates in their own precision. The error is bounded, and queries whose results could change are
    scanned again with exact scores. A score is the inner product in double precision, rounded to float32, so results are
    the same bits for every batch size, memory limit, number of threads, generator and shard size.

    Args:
        queries: Embeddings [queries, dim].
        store: The passages.
        depth: Passages per query; a smaller corpus gives as many as it has.
        batch_size: Queries per pass over the passages; -1: as many as fit in memory.
        max_memory: Bytes for vectors and result lists.
        threads: CPU threads of FAISS and of exact scores; None: all.
        label: Shown with the progress; empty for none.
        generator: Generates the candidates; FAISS on CPUs by default.

    Returns:
        An iterator over batches: rows of the store [batch, depth] and scores [batch, depth] float32, ordered by score,
        then docid, both descending.

    Raises:
        UserError: The depth is below 1, queries have another dim, NaN or infinity, or FAISS is needed and missing.

    Example:
        >>> import tempfile, numpy as np
        >>> from starbucks_retrieval.search.stores import write_vectors
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_vectors(f"{folder}/L1-D3", ["a", "b", "c"], np.eye(3, dtype=np.float32))
        ...     [(rows, scores)] = exact_search(np.array([[0.25, 1.0, 0.5]]), store, depth=2)
        ...     store.ids(rows[0]), scores[0].tolist()
        (['b', 'c'], [1.0, 0.5])
    """
    queries = check_queries(queries, store, depth, batch_size)
    depth = min(depth, store.count)
    generator = generator or FaissCandidateGenerator(threads)
    candidates = min(depth * generator.overfetch, store.count)
    plan = plan_memory(max_memory, batch_size, candidates, store.count, store.spec.size.dim)
    store.keep_mapped(max_memory // 2)
    return _batches(queries, store, depth, plan, generator, threads, label)


def _batches(
    queries: np.ndarray,
    store: EmbeddingStore,
    depth: int,
    plan: MemoryPlan,
    generator: CandidateGenerator,
    threads: int | None,
    label: str,
) -> Iterator[SearchResults]:
    for start in range(0, len(queries), plan.batch):
        batch = queries[start : start + plan.batch]
        found = generator.generate(batch, store, plan, depth, label)
        if found.scores is None:
            complete = found.rows.shape[1] == store.count
            scores = score_in_threads(batch, found.rows, store, plan.gathered, threads)
            rows, scores = best(found.rows, scores, depth, store)
        else:
            complete = False
            rows, scores = by_docid(found.rows, found.scores, depth, store)
        if not complete:
            # Scan again for queries where a passage outside the candidates might belong to the results.
            outside = found.ceiling + double_error(batch, store.largest_norm)
            doubtful = np.flatnonzero(outside.astype(np.float32) >= scores[:, -1])
            for first in range(0, len(doubtful), plan.rescanned):
                again = doubtful[first : first + plan.rescanned]
                rows[again], scores[again] = _rescan(batch[again], scores[again, -1], store, depth, plan)
        yield rows, scores


def _rescan(
    queries: np.ndarray, floor: np.ndarray, store: EmbeddingStore, depth: int, plan: MemoryPlan
) -> SearchResults:
    """Scan the store again and score every passage that may reach `floor` [queries], the score at `depth`, exactly.

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
            [near_scores] = score_rows(block, near[None], exact[i : i + 1], doubles[i : i + 1])
            all_scores = np.concatenate([scores[i], near_scores])
            top_rows, top_scores = best(all_rows[None], all_scores[None], depth, store)
            rows[i], scores[i] = top_rows[0], top_scores[0]
            if len(rows[i]) == depth:
                floor[i] = max(floor[i], scores[i][-1])
    return np.stack(rows), np.stack(scores)


class FaissEngine(CandidateEngine):
    """`--engine faiss`: the CPU unless `--device cuda` is given."""

    def candidate_generator(self, options: EngineOptions, dim: int | None = None) -> CandidateGenerator:
        """Return a generator for the device. Raises UserError for bf16, a device that is absent, and a missing FAISS."""
        if options.dtype not in ("auto", "fp32"):
            raise UserError(f"FAISS does not multiply in {options.dtype}", "use --engine torch")
        if options.device is None or options.device == "cpu":
            return FaissCandidateGenerator(options.threads)
        match = re.fullmatch(r"cuda(?::(\d+))?", options.device)
        if match is None:
            raise UserError(f"no device {options.device}", "use --device cpu, cuda or cuda:1")
        return GpuFaissCandidateGenerator(int(match[1] or 0))


class FaissCandidateGenerator:
    """Generates the `plan.candidates` best rows of each query by FAISS on CPUs.

    Args:
        threads: CPU threads of FAISS; None leaves their number as it is.

    Raises:
        UserError: FAISS is not installed.
    """

    overfetch = 1
    scans_float16 = True

    def __init__(self, threads: int | None = None) -> None:
        self.faiss = import_faiss()
        if threads is not None:
            self.faiss.omp_set_num_threads(threads)

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> Candidates:
        """Scan the store once, as `CandidateGenerator.generate` says."""
        slack = single_error(queries, store.largest_norm)
        if self.scans_float16 and scan_is_faster(len(queries), store.block_dtype):
            ranges = list(store.ranges(max(1, NUMBERS_AT_ONCE // store.spec.size.dim)))
            scores, rows = scan_float16(self.faiss, queries, store.rows, ranges, plan.candidates, label)
            return Candidates(rows, scores.min(axis=1) + slack)
        scores = np.empty((len(queries), 0), np.float32)
        rows = np.empty((len(queries), 0), np.int64)
        size = plan.block_for(len(queries), store.spec.size.dim)
        for start, block in blocks_with_progress(store, size, np.float32, label):
            count = min(plan.candidates, len(block))
            block_scores, block_rows = self.knn(queries, block, count)
            scores = np.concatenate([scores, block_scores], axis=1)
            rows = np.concatenate([rows, block_rows + start], axis=1)
            if scores.shape[1] > plan.candidates:
                scores, rows = largest(scores, rows, plan.candidates)
        return Candidates(rows, scores.min(axis=1) + slack)

    def knn(self, queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows of the best rows of a block.

        Args:
            queries: [queries, dim] float32.
            block: [rows, dim] float32.
            count: Rows to find for each query, at most those of the block.

        Returns:
            Scores, float32, and row numbers in the block, int64; both [queries, count].
        """
        return self.faiss.knn(queries, block, count, metric=self.faiss.METRIC_INNER_PRODUCT)


class GpuFaissCandidateGenerator(FaissCandidateGenerator):
    """The same on a GPU by faiss-gpu, whose products are in single precision too.

    Args:
        index: Number of the GPU, from 0.

    Raises:
        UserError: FAISS is not installed, or does not see this GPU.
    """

    largest_count = 2048  # rows that its selection can keep
    scans_float16 = False

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        gpus = self.faiss.get_num_gpus() if hasattr(self.faiss, "get_num_gpus") else 0
        if index >= gpus:
            raise UserError(
                f"FAISS sees {gpus} GPUs, --device asks for number {index}",
                "pip install faiss-gpu, or use --device cpu",
            )
        self.index = index
        self.resources = self.faiss.StandardGpuResources()

    def knn(self, queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As on a CPU. Raises UserError for more rows than FAISS can keep on a GPU."""
        if count > self.largest_count:
            raise UserError(
                f"FAISS keeps at most {self.largest_count} candidates on a GPU, this depth needs {count}",
                "lower --depth, or use --engine torch",
            )
        metric = self.faiss.METRIC_INNER_PRODUCT
        return self.faiss.knn_gpu(self.resources, queries, block, count, metric=metric, device=self.index)
