"""Search engines: the registry behind `--engine`, and what an engine is. Nothing here imports FAISS or torch.

A `CandidateEngine` generates candidates for exact search; a `RetrieverEngine` retrieves by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.registry import Registry
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.sizes import Size, pair_name
from starbucks_retrieval.store import EmbeddingStore

# The class behind a name is a CandidateEngine or a RetrieverEngine.
ENGINES: Registry[type[CandidateEngine] | type[RetrieverEngine]] = Registry(
    "engines",
    "search engine",
    {
        "faiss": ("starbucks_retrieval.search.engines.exact:FaissEngine", "exact, on CPUs or, with faiss-gpu, a GPU"),
        "torch": ("starbucks_retrieval.search.engines.torch:TorchEngine", "exact, matrix products on a CPU or a GPU"),
        "ray": ("starbucks_retrieval.search.engines.ray:RayEngine", "exact, by workers on one or more machines"),
        "milvus": ("starbucks_retrieval.search.engines.milvus:MilvusEngine", "in a Milvus collection"),
    },
)

MAX_MEMORY = 2 * 10**9  # bytes
FEW = 16  # queries
_CACHED, _CACHED_FEW = 2**24, 2**22  # numbers of a block, for many and for few queries

SearchResults = tuple[np.ndarray, np.ndarray]
RetrievedRows = Iterable[tuple[Iterable[np.ndarray], Iterable[np.ndarray]]]


@dataclass(frozen=True)
class MemoryPlan:
    """How much a search reads and keeps at once. It decides speed and memory, never results.

    Args:
        candidates: Passages kept per query before exact scoring.
        batch: Queries per pass over the store.
        block: Passages per matrix product.
        gathered: Candidates that are read back from the store at once.
        rescanned: Queries per additional pass, for those whose results single precision leaves open.
    """

    candidates: int
    batch: int
    block: int
    gathered: int
    rescanned: int

    def block_for(self, queries: int, dim: int) -> int:
        """Return `block`, or fewer: filling a large buffer costs more than merging the lists of smaller blocks."""
        return min(self.block, max(4 * self.candidates, (_CACHED_FEW if queries <= FEW else _CACHED) // dim))


def wanted_candidates(depth: int) -> int:
    """Return how many candidates to keep for so many results.

    Rounding errors of float32 are far below the differences between scores, so a few more than `depth` nearly always suffice.
    """
    return depth + 32 + depth // 32


def plan_memory(memory: int, batch_size: int, depth: int, count: int, dim: int) -> MemoryPlan:
    """Share a memory limit: half for a block of passages, a quarter each for candidate lists and exact scoring.

    Args:
        memory: Bytes. Where they are too few, the smallest plan that works is returned.
        batch_size: Queries per pass at most; -1: as many as fit.
        depth: Candidates needed per query.
        count: Passages of the store.
        dim: Dimensions of a vector.
    """
    candidates = min(wanted_candidates(depth), count)
    # Bytes per candidate: scores and rows, before and after a merge, and FAISS's own lists.
    batch = max(1, memory // 4 // (candidates * 100))
    if batch_size > 0:
        batch = min(batch, batch_size)
    block = min(max(256, memory // 2 // (dim * 4)), count)
    gathered, rescanned = max(256, memory // 4 // (dim * 6)), max(1, memory // 4 // (block * 4))
    return MemoryPlan(candidates, batch, block, gathered, rescanned)


@dataclass(frozen=True)
class EngineOptions:
    """What users choose about how an engine computes. An engine ignores the options of others.

    Args:
        device: `cpu`, `cuda` or `cuda:1`; None leaves it to the engine.
        dtype: Arithmetic of torch's products: `fp32`, `bf16` or `auto`.
        threads: CPU threads; None: all.
        batch_size: Queries per pass over the passages; -1: as many as fit in memory.
        max_memory: Bytes for vectors and result lists.
        index_search: Parameters of an approximate index, by name.
        checksum: Compare what is read from stores with its checksums.
        ray_workers: Ray workers; None: one a machine.
        ray_address: Address of a Ray cluster; None: that of the environment, or a local one.
        uri: File of Milvus Lite or URL of a Milvus server.
        collection: Name of the Milvus collection.
        milvus_index: Type of the index of its vector fields.
        milvus_token: `user:password` of the server.
    """

    device: str | None = None
    dtype: str = "auto"
    threads: int | None = None
    batch_size: int = 1024
    max_memory: int = MAX_MEMORY
    index_search: Mapping[str, Any] = field(default_factory=dict)
    checksum: bool = True
    ray_workers: int | None = None
    ray_address: str | None = None
    uri: str | None = None
    collection: str = "starbucks"
    milvus_index: str = "FLAT"
    milvus_token: str | None = None

    @property
    def limits(self) -> dict[str, Any]:
        """`max_memory` and `threads`, as keyword arguments of the functions that search."""
        return {"max_memory": self.max_memory, "threads": self.threads}


class Candidates(NamedTuple):
    """Rows that may be among the best of each query.

    Attributes:
        rows: Distinct rows of the store for each query, [queries, depth or more].
        ceiling: A bound that the exact inner product of no other row exceeds, [queries]. Without `scores`, it is not used where
            there is no other row; with them, it may leave out rows whose scores are known to be lower than the one at `depth`.
        scores: What `inner_products` returns for the rows, in descending order, [queries, rows] float32; -inf where there are
            fewer candidates, with any row. None: they have not been computed.
    """

    rows: np.ndarray
    ceiling: np.ndarray
    scores: np.ndarray | None = None


class CandidateGenerator(Protocol):
    """Scans every passage with a bounded score error. It decides how long a search takes, never what is found.

    `overfetch`: how many times `depth` candidates it keeps while it scans.
    """

    overfetch: int

    def generate(
        self, queries: np.ndarray, store: EmbeddingStore, plan: MemoryPlan, depth: int, label: str
    ) -> Candidates:
        """Scan the store for a batch of queries.

        Args:
            queries: [queries, dim], all finite.
            store: The passages.
            plan: How many candidates to return at most, and how much to read at once.
            depth: Passages that the search keeps for each query.
            label: Shown with the progress; empty for none.
        """
        ...


@dataclass(frozen=True)
class Retriever:
    """Finds passages for blocks of queries.

    Args:
        sizes: The sizes of the queries that `retrieve` needs.
        documents: Gives the ids of the rows that are found.
        retrieve: Takes {size: queries [block, dim]} and a label for the progress; yields rows and scores of each
            query, best first, batch by batch.
        close: Ends what was started for it.
    """

    sizes: tuple[Size, ...]
    documents: EmbeddingStore
    retrieve: Callable[[Mapping[Size, np.ndarray], str], RetrievedRows]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class SearchRequest:
    """A search, as an engine gets it.

    Both mappings have the same keys: the size that names a search or a step of a funnel. One of the two stores has this
    size, mostly both.

    Args:
        queries: Stores of the queries.
        passages: Stores of the passages that they are scored against.
        depth: Passages to keep for each query.
        funnel: The steps; None for a search at the only size.
        indexed: Whether an approximate index of `--index` or `--load_index` is used.
        passage_reps: Where the passages are stored, perhaps at more sizes than are searched.
        options: How to compute.
    """

    queries: Mapping[Size, EmbeddingStore]
    passages: Mapping[Size, EmbeddingStore]
    depth: int
    funnel: Funnel | None
    indexed: bool
    passage_reps: str
    options: EngineOptions

    @property
    def first(self) -> Size:
        """The size that is searched first."""
        return self.funnel.sizes[0] if self.funnel is not None else next(iter(self.passages))

    @property
    def last(self) -> Size:
        """The size whose scores the results have."""
        return self.funnel.last if self.funnel is not None else next(iter(self.passages))

    def size_name(self, size: Size) -> str:
        """Return the name of what is scored at one of the keys: `6:128`, or `1:128/6:128` (queries/passages)."""
        return pair_name(self.queries[size].spec.size, self.passages[size].spec.size)


class CandidateEngine(ABC):
    """An engine that only generates candidates: exact search, funnels and their tests come with it."""

    @abstractmethod
    def candidate_generator(self, options: EngineOptions, dim: int | None = None) -> CandidateGenerator:
        """Return a generator of candidates.

        Args:
            options: How to compute.
            dim: Dimensions of the vectors, where known.

        Raises:
            UserError: The engine cannot meet the options.
        """


class RetrieverEngine(ABC):
    """An engine that finds passages by itself, outside this process."""

    @abstractmethod
    def check(self, request: SearchRequest) -> None:
        """Raise UserError for a request that the engine cannot serve; nothing is started or written."""

    @abstractmethod
    def retriever(self, request: SearchRequest) -> Retriever:
        """Start what is needed and return a retriever; its owner closes it."""


def make_candidate_generator(
    engine: str = "faiss", options: EngineOptions | None = None, dim: int | None = None
) -> CandidateGenerator:
    """Return the candidate generator of an engine.

    Args:
        engine: A name of `ENGINES`.
        options: Device, dtype and threads.
        dim: Dimensions of the vectors, where known: it tells which dtype is fast.

    Raises:
        UserError: The engine is unknown, not installed or no generator of candidates, or the device is absent.
    """
    made = ENGINES[engine]()
    if not isinstance(made, CandidateEngine):
        raise UserError(f"--engine {engine} searches by itself", "use auto, faiss or torch")
    return made.candidate_generator(options or EngineOptions(), dim)


def blocks_with_progress(
    store: EmbeddingStore, rows: int, dtype: npt.DTypeLike, label: str
) -> Iterator[tuple[int, np.ndarray]]:
    """Iterate over `store.blocks(rows, dtype)`, showing progress where there is a label.

    Args:
        store: The passages.
        rows: Vectors per block; the last block may have fewer.
        dtype: The type of the arrays.
        label: Shown with the progress; empty for none.

    Returns:
        An iterator over (first row, vectors [up to rows, dim]). An array is valid until the next one is yielded.
    """
    blocks: Any = store.blocks(rows, dtype)
    return iter(progress(blocks, -(-store.count // rows), "blocks", label) if label else blocks)
