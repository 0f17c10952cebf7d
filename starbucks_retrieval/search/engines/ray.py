"""Exact search by Ray workers, beyond one machine: each streams its own rows of the store, the best are merged here."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.ray_cluster import cluster, import_ray, user_error
from starbucks_retrieval.search.engines.exact import (
    CandidateGenerator,
    Results,
    check_queries,
    exact_search,
    make_candidate_generator,
)
from starbucks_retrieval.search.plan import parse_bytes
from starbucks_retrieval.search.scores import best
from starbucks_retrieval.store import EmbeddingStore


class RaySearch:
    """Ray workers that search one store exactly; they stay until `close`.

    `folders`: a store, or all parts of one, at paths or URLs that every machine sees. `workers`: as many take equal
    shares of the shards, and `max_memory` each; one a machine if not given. `address`: a Ray cluster; if neither it nor
    the environment's RAY_ADDRESS is given, one that lives as long as this and that nobody else sees. `engine`, `device`,
    `dtype`: what proposes, as in `make_candidate_generator`. A worker that is lost is started again.

    Raises UserError for a Ray that is not installed or cannot be reached, and for all that `exact_search` refuses.
    """

    def __init__(
        self,
        folders: Sequence[str | Path],
        depth: int = 1000,
        *,
        workers: int | None = None,
        address: str | None = None,
        engine: str = "faiss",
        device: str | None = None,
        dtype: str = "auto",
        max_memory: str | int = "2GB",
    ) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"{workers} Ray workers are too few", "ask for at least one")
        parse_bytes(max_memory)
        self.store = _open(folders)
        self.depth = depth
        self._ray = import_ray("--engine ray")
        self._paths = [str(folder) if "://" in str(folder) else os.path.abspath(folder) for folder in folders]
        self._workers = workers
        self._address = address
        self._options = {"engine": engine, "device": device, "dtype": dtype, "max_memory": max_memory}
        self._cluster = contextlib.ExitStack()
        self._searchers: list[Any] = []

    def search(self, queries: np.ndarray, batch_size: int = 1024) -> Iterator[Results]:
        """See exact_search. Workers are started by the first call."""
        queries = self.check(queries, batch_size)
        if not self._searchers:
            self._start()
        at_once = batch_size if batch_size > 0 else len(queries)
        asked = self._ask(queries[:at_once])
        try:
            for start in range(0, len(queries), at_once):
                # While these are merged, the workers have the next ones.
                waiting, asked = asked, self._ask(queries[start + at_once : start + 2 * at_once])
                found = self._ray.get(waiting)
                rows, scores = (np.concatenate(parts, axis=1) for parts in zip(*found))
                yield best(rows, scores, min(self.depth, self.store.count), self.store)
        except self._ray.exceptions.RayError as error:
            raise user_error(error) or error from None

    def check(self, queries: np.ndarray, batch_size: int) -> np.ndarray:
        """The queries as they are sent. Raises UserError for those that cannot be searched for."""
        queries = np.ascontiguousarray(queries, np.float32)
        check_queries(queries, self.store, self.depth, batch_size)
        return queries

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for searcher in self._searchers:
            self._ray.kill(searcher)
        self._searchers = []
        self._cluster.close()

    def _start(self) -> None:
        ray, wanted = self._ray, self._options
        self._cluster.enter_context(cluster(ray, self._address, self._workers or 1))
        resources = ray.cluster_resources()
        cpus = max(1, int(resources.get("CPU", 1)))
        shares = _shares(self.store, min(self._workers or sum(node["Alive"] for node in ray.nodes()), cpus))
        wants_gpu = str(wanted["device"]).startswith("cuda")
        if wants_gpu and not resources.get("GPU"):  # Ray would wait for one for ever
            raise UserError(f"--device {wanted['device']}: the Ray cluster has no GPU", "say --device cpu")
        on_gpu = int(resources.get("GPU", 0)) > 0 and wanted["device"] != "cpu" and wanted["engine"] == "torch"
        actor = ray.remote(_Searcher).options(
            num_cpus=cpus // len(shares),
            num_gpus=1 if on_gpu or wants_gpu else 0,
            max_restarts=-1,
            max_task_retries=3,
            scheduling_strategy="SPREAD",
        )
        log.info("%d Ray workers, %d CPUs each, search %d passages", len(shares), cpus // len(shares), self.store.count)
        self._searchers = [actor.remote(self._paths, *share, self.depth, wanted) for share in shares]

    def _ask(self, queries: np.ndarray) -> list[Any]:
        if not len(queries):
            return []
        batch = self._ray.put(queries)
        return [searcher.search.remote(batch) for searcher in self._searchers]


class RemoteRows(EmbeddingStore):
    """The rows [start, stop) of a store as a store of their own, counted from 0."""

    def __init__(self, store: EmbeddingStore, start: int, stop: int) -> None:
        vars(self).update(vars(store))
        self.first_row = store.first_row + start
        self.count = stop - start
        self._store = store
        self._start = start

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """As EmbeddingStore.blocks."""
        for low in range(0, self.count, max_rows):
            vectors = self.vectors(np.arange(low, min(low + max_rows, self.count)))
            yield low, vectors.astype(dtype or self.dtype, copy=False)

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """As EmbeddingStore.consecutive."""
        return self._store.consecutive(self._start + start, self._start + stop)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """As EmbeddingStore.vectors."""
        return self._store.vectors(self._checked(rows) + self._start)

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """As EmbeddingStore.id_bytes."""
        return self._store.id_bytes(self._checked(rows) + self._start)


class _Searcher:
    """A Ray worker: opens the store once, searches its own rows for one batch of queries a call."""

    def __init__(self, folders: Sequence[str], start: int, stop: int, depth: int, options: dict[str, Any]) -> None:
        # Nothing may fail in here: Ray hands on errors of calls, and takes errors of a start for a lost machine.
        self.start, self.stop, self.depth = start, stop, depth
        self.folders = folders
        self.options = options

    def search(self, queries: np.ndarray) -> Results:
        """Rows of the whole store and scores, both [queries, depth] or fewer."""
        memory = self.options["max_memory"]
        found = exact_search(
            queries, self._rows, self.depth, batch_size=-1, max_memory=memory, generator=self._proposer
        )
        rows, scores = zip(*found)
        return np.concatenate(rows) + self.start, np.concatenate(scores)

    @functools.cached_property
    def _rows(self) -> RemoteRows:
        return RemoteRows(_open(self.folders), self.start, self.stop)

    @functools.cached_property
    def _proposer(self) -> CandidateGenerator:
        return make_candidate_generator(self.options["engine"], self.options["device"], self.options["dtype"])


def _open(folders: Sequence[str | Path]) -> EmbeddingStore:
    if not folders:
        raise UserError("there is no store to search", "name the passages with --passage_reps")
    return EmbeddingStore.join(map(EmbeddingStore.open, folders))


def _shares(store: EmbeddingStore, workers: int) -> list[tuple[int, int]]:
    """Consecutive rows for each worker: whole shards, in nearly equal numbers."""
    size = store.spec.shard_size
    shards = -(-store.count // size)
    workers = min(workers, shards)
    edges = [min(shards * worker // workers * size, store.count) for worker in range(workers)]
    return list(zip(edges, [*edges[1:], store.count]))
