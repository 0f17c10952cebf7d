"""Approximate indexes over a store: any FAISS factory, or one bit per dimension; results are rescored exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.search import check_parameters
from starbucks_retrieval.search.engines import MAX_MEMORY, plan_memory
from starbucks_retrieval.search.engines.exact import exact_search, import_faiss
from starbucks_retrieval.search.indexes.build import IndexSummary, build_index, sample_rows
from starbucks_retrieval.search.indexes.manifest import INDEX, IndexManifest, check_store, read_manifest
from starbucks_retrieval.search.indexes.vectors import VectorIndex, kind_of
from starbucks_retrieval.search.queries import check_queries
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.scores import score_in_threads
from starbucks_retrieval.store import EmbeddingStore

__all__ = [
    "RESCORE",
    "IndexManifest",
    "IndexSummary",
    "SavedIndex",
    "build_index",
    "open_index",
    "parse_parameters",
    "recall",
    "sample_rows",
]
__dir__ = public_names(__name__)


RESCORE = 4  # rows to score again, as a multiple of the depth


def open_index(folder: str | Path, store: EmbeddingStore, *, checksum: bool = True) -> SavedIndex:
    """Open an index that `build_index` wrote.

    Args:
        folder: Its folder.
        store: The store that it was built over.
        checksum: Check the content of the file, which reads all of it; otherwise only its length.

    Raises:
        UserError: There is no index, it is incomplete, damaged or of another model or size, or the store has changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_store(manifest, store, folder)
    problem = manifest.problem(folder, checksum)
    if problem is not None:
        raise UserError(problem, "build the index again with --overwrite")
    index = kind_of(manifest.factory).load(folder / INDEX, manifest.factory, manifest.calibration)
    if (index.count, index.dim) != (manifest.count, manifest.dim):
        raise UserError(f"{folder / INDEX} does not match its manifest", "build the index again with --overwrite")
    return SavedIndex(folder, manifest, store, index)


class SavedIndex:
    """An open index.

    Attributes:
        folder: Its folder.
        manifest: How it was built.
        store: The passages.
        parameters: The parameters of a search, with their defaults.
        quiet: Whether queries that find too few passages are not warned of; after the first warning they are not.
    """

    def __init__(self, folder: Path, manifest: IndexManifest, store: EmbeddingStore, index: VectorIndex) -> None:
        self.folder = folder
        self.manifest = manifest
        self.store = store
        self.parameters = index.search_parameters
        self._index = index
        self.quiet = False

    def search(
        self,
        queries: np.ndarray,
        depth: int = 1000,
        *,
        parameters: Mapping[str, float] | None = None,
        rescore: int | None = RESCORE,
        max_memory: int = MAX_MEMORY,
        threads: int | None = None,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Find passages for each query: at most `depth`, fewer where the index finds fewer.

        Args:
            queries: [queries, dim].
            depth: Passages per query.
            parameters: Of the search; see the attribute for those that the index takes.
            rescore: The best `rescore` × `depth` rows are scored exactly and ordered as by `exact_search`; with None or
                0 scores are FAISS's approximations (for "Binary": inner products of signs), equal ones ordered by docid.
            max_memory: Bytes for lists and vectors; it does not change results.
            threads: CPU threads; None: all.

        Returns:
            Rows and scores of each query, best first.

        Raises:
            UserError: The index does not take a parameter, or `exact_search` refuses the queries or the depth.
        """
        queries = check_queries(queries, self.store, depth)
        if rescore is not None and rescore < 0:
            raise UserError(f"--rescore {rescore} is below 0", "give a factor such as 4, or 0 for the scores of FAISS")
        values = check_parameters(parameters, self.parameters, self.manifest.factory, "search")
        if threads is not None:
            import_faiss().omp_set_num_threads(threads)
        depth = min(depth, self.store.count)
        width = min(depth * (rescore or 1), self.store.count)
        plan = plan_memory(max_memory, -1, width, self.store.count, self.store.spec.size.dim)
        if rescore:
            self.store.keep_mapped()
        all_rows: list[np.ndarray] = []
        all_scores: list[np.ndarray] = []
        for start in range(0, len(queries), plan.batch):
            batch = queries[start : start + plan.batch]
            rows, scores = self._index.search(batch, width, values)
            found = rows >= 0
            rows[~found] = 0  # scored too, and then dropped
            if rescore:
                kept = 1 + int(np.flatnonzero(found.any(axis=0)).max(initial=0))
                rows, found = rows[:, :kept], found[:, :kept]
                scores = score_in_threads(batch, rows, self.store, plan.gathered, threads)
            elif not np.isfinite(scores[found]).all():
                raise UserError(
                    f"{self.manifest.factory} cannot hold numbers as large as these vectors'",
                    "search with --rescore, or use an index of 32-bit floats: Flat, HNSW32",
                )
            batch_rows, batch_scores = self._ordered(rows, scores + np.float32(0), found, depth)
            all_rows += batch_rows
            all_scores += batch_scores
        self._warn_if_short(all_rows, depth)
        return all_rows, all_scores

    def _ordered(
        self, rows: np.ndarray, scores: np.ndarray, found: np.ndarray, depth: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the best rows and scores of each query among those that are `found` [queries, any]."""
        best_rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
        best_scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)
        complete = found.all(axis=1)
        lines = np.flatnonzero(complete)
        if len(lines):
            for line, top_rows, top_scores in zip(lines, *best(rows[lines], scores[lines], depth, self.store)):
                best_rows[line], best_scores[line] = top_rows, top_scores
        for line in np.flatnonzero(~complete & found.any(axis=1)):
            held = found[line]
            one_rows, one_scores = best(rows[line, held][None], scores[line, held][None], depth, self.store)
            best_rows[line], best_scores[line] = one_rows[0], one_scores[0]
        return best_rows, best_scores

    def _warn_if_short(self, rows: list[np.ndarray], depth: int) -> None:
        """Warn once about queries that found fewer passages than `depth`."""
        short = sum(len(found) < depth for found in rows)
        if short and not self.quiet:
            self.quiet = True
            remedies = {"nprobe": "raise nprobe", "efSearch": "raise efSearch, or build a graph of more links"}
            remedy = next((f": {remedies[name]}" for name in remedies if name in self.parameters), "")
            log.warning("%d of %d queries found fewer than %d passages%s", short, len(rows), depth, remedy)


def recall(
    saved: SavedIndex,
    queries: np.ndarray,
    depth: int = 1000,
    *,
    exact: np.ndarray | None = None,
    at: tuple[int, ...] = (10, 100),
    parameters: Mapping[str, float] | None = None,
    rescore: int | None = RESCORE,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
) -> dict[str, float]:
    """Measure which share of the exact best k passages the index has among its best k: {"recall@10": 0.98, …}.

    Args:
        saved: The index.
        queries: [queries, dim]; the mean over them is returned.
        depth: Passages per query of the search that is measured.
        exact: Rows that `exact_search` finds for them [queries, k or more]; searched here if None.
        at: The values of k. Those beyond the depth or the corpus are left out; if none remains, k is the smaller of them.
        parameters: Parameters of the search that is measured.
        rescore: As in `SavedIndex.search`.
        max_memory: Bytes for lists and vectors.
        threads: CPU threads of FAISS; None: all.
    """
    deepest = min(depth, saved.store.count)
    cutoffs = sorted({k for k in at if 1 <= k <= deepest}) or [deepest]
    rows, _ = saved.search(
        queries, depth, parameters=parameters, rescore=rescore, max_memory=max_memory, threads=threads
    )
    if exact is None:
        label = "exact search, for comparison"
        found = exact_search(
            queries, saved.store, cutoffs[-1], batch_size=-1, max_memory=max_memory, threads=threads, label=label
        )
        exact = np.concatenate([lines for lines, _ in found])
    if len(exact) != len(rows) or exact.shape[1] < cutoffs[-1]:
        raise ValueError(f"exact results of shape {exact.shape} for {len(rows)} queries at {cutoffs[-1]}")
    return {
        f"recall@{k}": float(np.mean([np.isin(right[:k], found[:k]).mean() for right, found in zip(exact, rows)]))
        for k in cutoffs
    }
