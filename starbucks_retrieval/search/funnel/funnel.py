"""The funnel: a shortlist at one size, rescored at the next; every size comes from one pass of the encoder.

Source: the cascade of adaptive retrieval over nested embeddings (arXiv 2205.13147, section 4.3), here over layers too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import CandidateGenerator, Results, check_queries, exact_search
from starbucks_retrieval.search.funnel_rescore import rescore
from starbucks_retrieval.search.plan import make_plan, parse_bytes
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.spec import agree

# What two stores must share for a row to mean one text, encoded alike.
_SHARED = (
    *("kind", "data_digest", "data_count", "parts", "part"),
    *("model_name", "pooling", "normalize", "prefix", "separator"),
)
_SPELLING = "write layer:dim@passages for every step, for example 2:32@1000,6:128@100,12:768"


class Shortlister(Protocol):
    """What may stand in for exact search in the first step: an index over the store of the first size."""

    def search(self, queries: np.ndarray, depth: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """For each query up to `depth` distinct rows, and their scores; -1 stands for a row that was not found."""
        ...


@dataclass(frozen=True)
class FunnelStep:
    """One size, and how many passages of each query it lets through. None, for the last step: as many as are asked."""

    size: Size
    keep: int | None = None

    def __str__(self) -> str:
        return str(self.size) if self.keep is None else f"{self.size}@{self.keep}"


@dataclass(frozen=True)
class Funnel:
    """Steps of growing size and shrinking lists; a single one is a plain search. Raises UserError for other shapes."""

    steps: tuple[FunnelStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise UserError("the funnel has no steps", _SPELLING)
        sizes = [step.size for step in self.steps]
        for size in sizes:
            if sizes.count(size) > 1:
                raise UserError(f"the funnel {self} scores at {size} twice", "name each size once")
        for step in self.steps[:-1]:
            if step.keep is None:
                raise UserError(f"the funnel {self} does not say how many passages {step} keeps", _SPELLING)
        for step in self.steps:
            if step.keep is not None and step.keep < 1:
                raise UserError(f"the funnel {self} keeps {step.keep} passages at {step.size}", "keep at least one")
        for first, second in pairwise(self.steps):
            if not grows(first.size, second.size):
                raise UserError(
                    f"the funnel {self} shrinks from {first.size} to {second.size}: a funnel grows in cost",
                    "put the cheapest size first; neither layers nor dims may shrink from step to step",
                )
            if first.keep is not None and second.keep is not None and second.keep > first.keep:
                raise UserError(
                    f"the funnel {self} keeps {second.keep} passages at {second.size}, of {first.keep} before",
                    "keep no more than the step before does",
                )

    @classmethod
    def parse(cls, text: str) -> Funnel:
        """Read `2:32@1000,6:128@100,12:768`. The last step may name its number too, else the depth decides."""
        steps = []
        for word in text.split(","):
            size, at, keep = word.strip().partition("@")
            if at and not re.fullmatch(r"-?\d+", keep):
                raise UserError(f"cannot read the step {word.strip()!r} of the funnel {text}", _SPELLING)
            try:
                steps.append(FunnelStep(Size.parse(size), int(keep) if at else None))
            except UserError as error:
                raise UserError(f"{error.what}, in the funnel {text!r}", _SPELLING) from None
        return cls(tuple(steps))

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    @property
    def sizes(self) -> Sizes:
        """The sizes in order, for an encoder."""
        return Sizes(step.size for step in self.steps)

    @property
    def last(self) -> Size:
        """The size whose scores the results have."""
        return self.steps[-1].size

    @property
    def depth(self) -> int | None:
        """How many passages the last step keeps, where it says so."""
        return self.steps[-1].keep

    def at_depth(self, depth: int | None = None, default: int = 1000) -> Funnel:
        """The same funnel whose last step keeps `depth` passages; None leaves it to the funnel, else to `default`.

        A step before that keeps fewer settles the matter, with a warning. Raises UserError for a depth below 1 and for
        one that contradicts the funnel.
        """
        own = self.depth
        if depth is not None and depth < 1:
            raise UserError(f"--depth {depth} is below 1", "ask for at least one passage per query")
        if depth is not None and own is not None and depth != own:
            raise UserError(
                f"--depth {depth} contradicts the funnel {self}, which ends with @{own}", "give one of them"
            )
        wanted = depth or own or default
        before = self.steps[-2].keep if len(self.steps) > 1 else None
        if before is not None and wanted > before:
            log.warning("the funnel %s passes on %d passages: each query gets these, not %d", self, before, wanted)
            wanted = before
        return Funnel((*self.steps[:-1], replace(self.steps[-1], keep=wanted)))


def grows(first: Size, second: Size) -> bool:
    """Whether a funnel may go from one size to another: more layers or dims, and fewer of neither."""
    return first != second and first.layer <= second.layer and first.dim <= second.dim


def funnel_search(
    queries: Mapping[Size, np.ndarray],
    stores: Mapping[Size, EmbeddingStore],
    funnel: Funnel,
    *,
    first: Shortlister | None = None,
    batch_size: int = 1024,
    max_memory: str | int = "2GB",
    threads: int | None = None,
    generator: CandidateGenerator | None = None,
    label: str = "",
) -> Iterator[Results]:
    """The passages that come out of a funnel for each query, in batches of queries, in order.

    `queries`: for each size of the funnel [queries, dim], the same queries in the same order. The first step searches
    its store exactly, or asks `first`, an index over it; each later one reads the shortlisted rows of its store only.
    Yields what `exact_search` yields: (rows [batch, keep], scores [batch, keep] float32) with the exact inner products
    of the last size, ties by docid. A first step that keeps the whole corpus gives what exact search at the last size
    gives, bit for bit. An index that finds too few is helped out with the first passages that it did not find.

    Raises UserError for stores that do not hold the same passages, for a size that is missing, and for anything
    `exact_search` refuses.
    """
    funnel = funnel.at_depth()
    check_together(stores, funnel.sizes)
    vectors = {size: _queries(queries, size, stores[size], batch_size) for size in funnel.sizes}
    if len({len(own) for own in vectors.values()}) > 1:
        counts = ", ".join(f"{len(own)} at {size}" for size, own in vectors.items())
        raise UserError(f"the sizes have different numbers of queries: {counts}", "encode the queries at all sizes")
    size, keep = funnel.steps[0].size, funnel.steps[0].keep
    assert keep is not None
    memory = parse_bytes(max_memory)
    if first is not None:
        found = _shortlists(first, vectors[size], stores[size], keep, batch_size, memory)
        # An index that is the only step gave scores of its own; the results have exact ones.
        return _rescored(found, vectors, stores, funnel.steps[1:] or funnel.steps, memory, threads)
    found = exact_search(
        vectors[size],
        stores[size],
        keep,
        batch_size=batch_size,
        max_memory=max_memory,
        threads=threads,
        generator=generator,
        label=label,
    )
    return _rescored(found, vectors, stores, funnel.steps[1:], memory, threads)


def check_together(stores: Mapping[Size, EmbeddingStore], sizes: Iterable[Size]) -> None:
    """Raise UserError unless there is a store for every size, and all hold the same texts in the same order.

    Layers of one model have fingerprints of their own, so the model is told by its name there.
    """
    sizes = list(sizes)
    for size in sizes:
        if size not in stores:
            raise UserError(f"there is no store of size {size}", f"there is {', '.join(map(str, stores)) or 'none'}")
    for one, other in pairwise(sorted(sizes)):  # sizes of one layer are neighbours
        first, second = stores[one].spec, stores[other].spec
        for name in _SHARED + (("fingerprint",) if first.size.layer == second.size.layer else ()):
            left, right = getattr(first, name), getattr(second, name)
            if name == "model_name":  # one folder can be spelled in several ways
                left, right = Path(left).name, Path(right).name
            if not agree(name, left, right):
                raise UserError(
                    f"the stores of {one} and {other} do not belong together: {name} is {left!r} and {right!r}",
                    "encode all sizes of a funnel in one go: --sizes 2:32,12:768",
                )


def _queries(queries: Mapping[Size, np.ndarray], size: Size, store: EmbeddingStore, batch_size: int) -> np.ndarray:
    if size not in queries:
        raise UserError(f"there are no queries of size {size}", f"there is {', '.join(map(str, queries)) or 'none'}")
    own = np.ascontiguousarray(queries[size], np.float32)
    check_queries(own, store, 1, batch_size)
    return own


def _rescored(
    found: Iterable[Results],
    queries: Mapping[Size, np.ndarray],
    stores: Mapping[Size, EmbeddingStore],
    steps: tuple[FunnelStep, ...],
    memory: int,
    threads: int | None,
) -> Iterator[Results]:
    for step in steps:
        stores[step.size].keep_mapped()
    done = 0
    for rows, scores in found:
        batch = slice(done, done + len(rows))
        for step in steps:
            keep = step.keep or rows.shape[1]
            rows, scores = rescore(queries[step.size][batch], rows, keep, stores[step.size], memory, threads)
        yield rows, scores
        done += len(rows)


def _shortlists(
    first: Shortlister, queries: np.ndarray, store: EmbeddingStore, keep: int, batch_size: int, memory: int
) -> Iterator[Results]:
    keep = min(keep, store.count)
    batch = make_plan(memory, batch_size, keep, store.count, store.spec.size.dim).batch
    for start in range(0, len(queries), batch):
        lines, _ = first.search(queries[start : start + batch], keep)
        rows = np.empty((len(lines), keep), np.int64)
        for i, line in enumerate(lines):
            own = np.asarray(line, np.int64)
            own = own[own >= 0][:keep]
            rows[i, : len(own)] = own
            if len(own) < keep:
                others = np.setdiff1d(np.arange(min(2 * keep, store.count)), own)
                rows[i, len(own) :] = others[: keep - len(own)]
        yield rows, np.zeros(rows.shape, np.float32)  # scores are those of the next step
