"""An index in its folder: opened for the store it was built over, searched, and rescored by the stored vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import check_queries, import_faiss
from starbucks_retrieval.search.indexes.bits import BINARY, BitIndex
from starbucks_retrieval.search.indexes.manifest import INDEX, IndexManifest, check_store, read_manifest
from starbucks_retrieval.search.indexes.parameters import check
from starbucks_retrieval.search.indexes.vectors import VectorIndex
from starbucks_retrieval.search.plan import make_plan, parse_bytes
from starbucks_retrieval.search.scores import best, score_candidates
from starbucks_retrieval.store import EmbeddingStore

RESCORE = 4


def open_index(folder: str | Path, store: EmbeddingStore, *, checksum: bool = True) -> SavedIndex:
    """Open what `build_index` wrote, for the store that it was built over.

    Without `checksum` the file's length is checked, not its content: reading all of a large one takes a while. Raises
    UserError for no index, an incomplete or damaged one, one of another model or size, and a store changed since.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_store(manifest, store, folder)
    problem = manifest.problem(folder, checksum)
    if problem is not None:
        raise UserError(problem, "build the index again with --overwrite")
    kind = BitIndex if manifest.factory == BINARY else VectorIndex
    index = kind.load(folder / INDEX, manifest.factory, manifest.calibration)
    if (index.count, index.dim) != (manifest.count, manifest.dim):
        raise UserError(f"{folder / INDEX} is not what its manifest says", "build the index again with --overwrite")
    return SavedIndex(folder, manifest, store, index)


class SavedIndex:
    """An open index. `parameters`: what a search can be tuned by, with the values it has otherwise."""

    def __init__(
        self, folder: Path, manifest: IndexManifest, store: EmbeddingStore, index: VectorIndex | BitIndex
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.store = store
        self.parameters = index.search_parameters
        self._index = index
        self._told = False

    def search(
        self,
        queries: np.ndarray,
        depth: int = 1000,
        *,
        parameters: Mapping[str, float] | None = None,
        rescore: int | None = RESCORE,
        max_memory: str | int = "2GB",
        threads: int | None = None,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """For each query, rows of the store and their scores, best first: at most `depth` of them.

        `queries`: [queries, dim]. An index may find fewer, even none: an IVF whose `nprobe` lists hold no more. With
        `rescore`, the `rescore` × `depth` rows that FAISS thinks best are scored by their stored vectors, exactly as
        `exact_search` does, and ordered as it orders; with None or 0, scores are FAISS's own approximations (of
        "Binary": inner products of signs), equal ones ordered by docid. `parameters`: see the attribute. Results do not
        depend on `max_memory`, which bounds the lists and the vectors read. Raises UserError for a parameter that the
        index does not take, and for queries and depths that `exact_search` refuses.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        check_queries(queries, self.store, depth, -1)
        if rescore is not None and rescore < 0:
            raise UserError(f"--rescore {rescore} is below 0", "give a factor such as 4, or 0 for FAISS's own scores")
        values = check(parameters, self.parameters, self.manifest.factory, "search")
        if threads is not None:
            import_faiss().omp_set_num_threads(threads)
        depth = min(depth, self.store.count)
        width = min(depth * (rescore or 1), self.store.count)
        plan = make_plan(parse_bytes(max_memory), -1, width, self.store.count, self.store.spec.size.dim)
        all_rows: list[np.ndarray] = []
        all_scores: list[np.ndarray] = []
        for start in range(0, len(queries), plan.batch):
            batch = queries[start : start + plan.batch]
            rows, scores = self._index.search(batch, width, values)
            found = rows >= 0
            rows[~found] = 0  # read along, never told
            if rescore:
                kept = 1 + int(np.flatnonzero(found.any(axis=0)).max(initial=0))
                rows, found = rows[:, :kept], found[:, :kept]
                scores = score_candidates(batch, rows, self.store, plan.gathered)
            elif not np.isfinite(scores[found]).all():
                raise UserError(
                    f"{self.manifest.factory} cannot hold numbers as large as these vectors'",
                    "search with --rescore, or take an index of 32-bit floats: Flat, HNSW32",
                )
            own_rows, own_scores = self._ordered(rows, scores + np.float32(0), found, depth)
            all_rows += own_rows
            all_scores += own_scores
        self._tell(all_rows, depth)
        return all_rows, all_scores

    def _ordered(
        self, rows: np.ndarray, scores: np.ndarray, found: np.ndarray, depth: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The best of each line, of what was `found` in it."""
        own_rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
        own_scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)
        whole = found.all(axis=1)
        lines = np.flatnonzero(whole)
        if len(lines):
            for line, top_rows, top_scores in zip(lines, *best(rows[lines], scores[lines], depth, self.store)):
                own_rows[line], own_scores[line] = top_rows, top_scores
        for line in np.flatnonzero(~whole & found.any(axis=1)):
            there = found[line]
            one_rows, one_scores = best(rows[line, there][None], scores[line, there][None], depth, self.store)
            own_rows[line], own_scores[line] = one_rows[0], one_scores[0]
        return own_rows, own_scores

    def _tell(self, rows: list[np.ndarray], depth: int) -> None:
        """Say once that there are lists shorter than asked for."""
        short = sum(len(own) < depth for own in rows)
        if short and not self._told:
            self._told = True
            remedies = {"nprobe": "raise nprobe", "efSearch": "raise efSearch, or build a graph of more links"}
            remedy = next((f": {remedies[name]}" for name in remedies if name in self.parameters), "")
            log.warning("%d of %d queries found fewer than %d passages%s", short, len(rows), depth, remedy)
