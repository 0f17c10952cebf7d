"""Exact search by Ray workers on one or more machines: each scans its rows of the store, the best rows are merged."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.ray_cluster import cluster, import_ray, user_error
from starbucks_retrieval.search.engines import (
    CandidateGenerator,
    EngineOptions,
    RetrievedRows,
    Retriever,
    RetrieverEngine,
    SearchRequest,
    SearchResults,
    make_candidate_generator,
)
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.queries import check_queries
from starbucks_retrieval.search.ranking import best
from starbucks_retrieval.search.stores import SlicedStore
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.shards import checked_rows


class RayEngine(RetrieverEngine):
    """`--engine ray`: workers generate candidates by FAISS, or by torch where a device or a dtype is given."""

    def check(self, request: SearchRequest) -> None:
        """Raise UserError for a funnel and for an index."""
        if request.funnel is not None or request.indexed:
            raise UserError("--engine ray searches exactly at one size", "omit --funnel and the index, or --engine")

    def retriever(self, request: SearchRequest) -> Retriever:
        """Return a retriever whose workers stay for all blocks of queries."""
        store = request.passages[request.last]
        workers = RaySearch(store.folders, request.depth, request.options, dim=store.spec.size.dim)

        def retrieve(queries: Mapping[Size, np.ndarray], label: str) -> RetrievedRows:
            return workers.search(queries[request.last])

        return Retriever((request.last,), store, retrieve, workers.close)


class RaySearch:
    """Ray workers that search one store exactly; they stay until `close`. A worker that dies is started again.

    Args:
        folders: A store, or all parts of one, at paths or URLs that every machine can read.
        depth: Passages per query.
        options: `ray_workers` take equal shares of the shards, and `max_memory` each; by default one a machine.
            `ray_address` names a cluster; without it and without RAY_ADDRESS in the environment, a cluster is started
            on this machine that ends with the search. `device` and `dtype` are those of the candidate generator.
        dim: Search the first numbers of each vector only; None: all.

    Raises:
        UserError: Ray is not installed or cannot be reached, or `exact_search` refuses the queries.
    """

    def __init__(
        self,
        folders: Sequence[str | Path],
        depth: int = 1000,
        options: EngineOptions | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        self.options = options or EngineOptions()
        workers = self.options.ray_workers
        if workers is not None and workers < 1:
            raise UserError(f"{workers} Ray workers are too few", "give --ray_workers 1 or more")
        self.store = _open(folders, dim, self.options.checksum)
        self.depth = depth
        self._ray = import_ray("--engine ray")
        self._paths = [str(folder) if "://" in str(folder) else os.path.abspath(folder) for folder in folders]
        self._cluster = contextlib.ExitStack()
        self._workers: list[Any] = []

    def search(self, queries: np.ndarray) -> Iterator[SearchResults]:
        """Find the best passages of queries [queries, dim], as `exact_search`; the first call starts the workers."""
        queries = check_queries(queries, self.store, self.depth, self.options.batch_size)
        if not self._workers:
            self._start()
        at_once = self.options.batch_size if self.options.batch_size > 0 else len(queries)
        submitted = self._submit(queries[:at_once])
        try:
            for start in range(0, len(queries), at_once):
                # The workers search the next batch while the results of this one are merged.
                pending, submitted = submitted, self._submit(queries[start + at_once : start + 2 * at_once])
                found = self._ray.get(pending)
                rows, scores = (np.concatenate(parts, axis=1) for parts in zip(*found))
                yield best(rows, scores, min(self.depth, self.store.count), self.store)
        except self._ray.exceptions.RayError as error:
            raise user_error(error) or error from None

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        self._cluster.close()

    def _start(self) -> None:
        ray, options = self._ray, self.options
        self._cluster.enter_context(cluster(ray, options.ray_address, options.ray_workers or 1))
        resources = ray.cluster_resources()
        cpus = max(1, int(resources.get("CPU", 1)))
        shares = _shares(self.store, min(options.ray_workers or sum(node["Alive"] for node in ray.nodes()), cpus))
        engine = "faiss" if options.device is None and options.dtype == "auto" else "torch"
        needs_gpu = str(options.device).startswith("cuda")
        if needs_gpu and not resources.get("GPU"):  # Ray would wait for a GPU forever
            raise UserError(f"--device {options.device}: the Ray cluster has no GPU", "use --device cpu")
        on_gpu = int(resources.get("GPU", 0)) > 0 and options.device != "cpu" and engine == "torch"
        dim = self.store.spec.size.dim
        actor = ray.remote(_Worker).options(
            num_cpus=cpus // len(shares),
            num_gpus=1 if on_gpu or needs_gpu else 0,
            max_restarts=-1,
            max_task_retries=3,
            scheduling_strategy="SPREAD",
        )
        log.info("%d Ray workers, %d CPUs each, search %d passages", len(shares), cpus // len(shares), self.store.count)
        self._workers = [actor.remote(self._paths, dim, *share, self.depth, engine, options) for share in shares]

    def _submit(self, queries: np.ndarray) -> list[Any]:
        if not len(queries):
            return []
        batch = self._ray.put(queries)
        return [worker.search.remote(batch) for worker in self._workers]


class RowRangeView(EmbeddingStore):
    """A view of the rows [start, stop) of a store, counted from 0."""

    def __init__(self, store: EmbeddingStore, start: int, stop: int) -> None:
        vars(self).update(vars(store))
        self.first_row = store.first_row + start
        self.count = stop - start
        self._store = store
        self._start = start

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """As EmbeddingStore.blocks."""
        for low in range(0, self.count, max_rows):
            yield low, self.rows(low, min(low + max_rows, self.count)).astype(dtype or self.dtype, copy=False)

    def ranges(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """As EmbeddingStore.ranges."""
        for start, stop in self._store.ranges(max_rows):
            low, high = max(start - self._start, 0), min(stop - self._start, self.count)
            if low < high:
                yield low, high

    def rows(self, start: int, stop: int) -> np.ndarray:
        """As EmbeddingStore.rows."""
        return self._store.rows(self._start + start, self._start + stop)

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """As EmbeddingStore.consecutive."""
        return self._store.consecutive(self._start + start, self._start + stop)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """As EmbeddingStore.vectors."""
        return self._store.vectors(checked_rows(rows, self.count) + self._start)

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """As EmbeddingStore.id_bytes."""
        return self._store.id_bytes(checked_rows(rows, self.count) + self._start)


class _Worker:
    """A Ray worker: opens the store once, searches its rows for one batch of queries a call."""

    def __init__(
        self, folders: Sequence[str], dim: int, start: int, stop: int, depth: int, engine: str, options: EngineOptions
    ) -> None:
        # Nothing may fail here: Ray passes on errors of calls, but treats an error at the start as a lost machine.
        self.start, self.stop, self.depth = start, stop, depth
        self.folders, self.dim = folders, dim
        self.engine, self.options = engine, options

    def search(self, queries: np.ndarray) -> SearchResults:
        """Return rows of the whole store and scores, both [queries, depth] or fewer."""
        found = exact_search(
            queries,
            self._rows,
            self.depth,
            batch_size=-1,
            max_memory=self.options.max_memory,
            generator=self._generator,
        )
        rows, scores = zip(*found)
        return np.concatenate(rows) + self.start, np.concatenate(scores)

    @functools.cached_property
    def _rows(self) -> RowRangeView:
        return RowRangeView(_open(self.folders, self.dim, self.options.checksum), self.start, self.stop)

    @functools.cached_property
    def _generator(self) -> CandidateGenerator:
        options = EngineOptions(device=self.options.device, dtype=self.options.dtype)
        return make_candidate_generator(self.engine, options)


def _open(folders: Sequence[str | Path], dim: int | None, checksum: bool) -> EmbeddingStore:
    if not folders:
        raise UserError("there is no store to search", "name the passages with --passage_reps")
    store = EmbeddingStore.join(map(EmbeddingStore.open, folders))
    if not checksum:
        store.skip_checksums()
    return store if dim in (None, store.spec.size.dim) else SlicedStore(store, dim)


def _shares(store: EmbeddingStore, workers: int) -> list[tuple[int, int]]:
    """Return the rows of each worker as (start, stop): whole shards, in nearly equal numbers."""
    size = store.spec.shard_size
    shards = -(-store.count // size)
    workers = min(workers, shards)
    edges = [min(shards * worker // workers * size, store.count) for worker in range(workers)]
    return list(zip(edges, [*edges[1:], store.count]))
