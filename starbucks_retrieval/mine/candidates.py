"""Ranked candidates of every query, in arrays; and the one order that all engines rank by."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from starbucks_retrieval.data import Passage, Records
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What an engine found.

    rows: int32 [topics, depth], rows of the corpus, best first, -1 after the last. scores: float32 of the same shape.
    positive_scores: float32 [pairs], aligned with Topics.rows; NaN where the engine has none.
    """

    rows: np.ndarray
    scores: np.ndarray
    positive_scores: np.ndarray

    @classmethod
    def none_yet(cls, topics: Topics, depth: int) -> Candidates:
        """Empty lists, to be filled."""
        shape = len(topics), depth
        unknown = np.full(len(topics.rows), np.nan, np.float32)
        return cls(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), unknown)


class Engine(Protocol):
    """What finds candidates. `identity` is everything, besides the texts, that its lists depend on, ready for JSON."""

    @property
    def identity(self) -> dict[str, Any]: ...

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates: ...


def best(scores: np.ndarray, ranks: np.ndarray, depth: int) -> np.ndarray:
    """Positions of the `depth` best, in trec_eval's order: score descending, then docid descending by its bytes.

    scores, ranks: [any], the ranks being those of `Docids`. Returns [min(depth, any)].
    """
    near = np.arange(len(scores))
    if len(scores) > depth:
        floor = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        near = np.flatnonzero(scores >= floor)
    return near[np.lexsort((ranks[near], scores[near]))[::-1][:depth]]
