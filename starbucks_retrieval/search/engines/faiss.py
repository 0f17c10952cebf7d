"""Candidates from FAISS: flat inner products in single precision, on CPUs or on a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.base import (
    CandidateEngine,
    CandidateGenerator,
    EngineOptions,
    blocks_with_progress,
)
from starbucks_retrieval.search.memory import MemoryPlan
from starbucks_retrieval.search.scores import single_error
from starbucks_retrieval.store import EmbeddingStore


def import_faiss() -> Any:
    """Return the module faiss. Raises UserError with the command that installs it where it is missing."""
    try:
        import faiss
    except ImportError:
        raise UserError(
            "search needs FAISS, which is not installed",
            "pip install faiss-cpu (or faiss-gpu on a CUDA machine; never both)",
        ) from None
    return faiss


class FaissEngine(CandidateEngine):
    """`--engine faiss`: the CPU unless `--device cuda` is given."""

    def candidate_generator(self, options: EngineOptions, dim: int | None = None) -> CandidateGenerator:
        """Return a generator for the device. Raises UserError for bf16 and for a device that is not there."""
        if options.dtype not in ("auto", "fp32"):
            raise UserError(f"FAISS does not multiply in {options.dtype}", "use --engine torch")
        if options.device is None or options.device == "cpu":
            return FaissCandidateGenerator(options.threads)
        match = re.fullmatch(r"cuda(?::(\d+))?", options.device)
        if match is None:
            raise UserError(f"no device {options.device}", "use --device cpu, cuda or cuda:1")
        return GpuFaissCandidateGenerator(int(match[1] or 0))


class FaissCandidateGenerator:
    """Generates the `plan.candidates` best rows of each query by FAISS on CPUs."""

    overfetch = 1

    def __init__(self, threads: int | None = None) -> None:
        self.faiss = import_faiss()
        if threads is not None:
            self.faiss.omp_set_num_threads(threads)

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scan the store once, as `CandidateGenerator.generate` says."""
        scores = np.empty((len(queries), 0), np.float32)
        rows = np.empty((len(queries), 0), np.int64)
        size = plan.block_for(len(queries), store.spec.size.dim)
        for start, block in blocks_with_progress(store, size, np.float32, label):
            count = min(plan.candidates, len(block))
            block_scores, block_rows = self.knn(queries, block, count)
            scores = np.concatenate([scores, block_scores], axis=1)
            rows = np.concatenate([rows, block_rows + start], axis=1)
            if scores.shape[1] > plan.candidates:
                kept = np.argpartition(-scores, plan.candidates - 1, axis=1)[:, : plan.candidates]
                scores, rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)
        return rows, scores.min(axis=1) + single_error(queries, store.largest_norm)

    def knn(self, queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows of the `count` best rows of a block: both [queries, count]."""
        return self.faiss.knn(queries, block, count, metric=self.faiss.METRIC_INNER_PRODUCT)


class GpuFaissCandidateGenerator(FaissCandidateGenerator):
    """The same on a GPU by faiss-gpu, whose products are in single precision too. `index`: number of the GPU."""

    largest_count = 2048  # rows that its selection can keep

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
