"""A machine as the model of search sees it: seconds of the pieces that searches are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LINKS = 32  # of HNSW32: neighbours of a node on the upper levels; twice as many on the lowest
RESCORE = 4  # as `search --rescore`: results of an index that are scored again, over depth
LEAST_EF = 64


@dataclass(frozen=True)
class LinearCost:
    """Seconds of one thing of some width: `each` + `number` × width."""

    each: float
    number: float

    def __call__(self, width: float) -> float:
        return self.each + self.number * width

    @classmethod
    def through(cls, narrow: tuple[int, float], wide: tuple[int, float]) -> LinearCost:
        """The line through two measurements (width, seconds), neither of its numbers negative."""
        (left, low), (right, high) = narrow, wide
        number = min(max(0.0, (high - low) / (right - left)), high / right)
        return cls(max(0.0, high - number * right), number)


@dataclass(frozen=True)
class Rates:
    """Seconds of one query's share when a batch of some size is searched.

    `scan`: one passage of a flat scan, by its dim; `choose`: one that enters the list of the best there; `code`: one
    product-quantised passage, by its bytes; `keep`: one that enters the list there; `visit`: one vector that HNSW
    fetches and scores, by its dim; `hop`: one node whose links HNSW follows.
    """

    scan: LinearCost
    choose: float
    code: LinearCost
    keep: float
    visit: LinearCost
    hop: float


@dataclass(frozen=True)
class Growth:
    """How many vectors HNSW visits, from graphs of `nodes` and `nodes` / 4 passages.

    Were no node met twice, a search that keeps `ef` would visit

        x = fresh × (ef / LEAST_EF)^power × (1 + slope × ln(passages / nodes)), at most 2 × LINKS × ef,

    with `fresh`, `power` and `slope` measured; of N passages x random draws visit N × (1 - exp(-x / N)).
    """

    nodes: int
    fresh: float
    power: float
    slope: float

    def visits(self, passages: float, ef: float) -> float:
        """Vectors visited by one query."""
        grown = max(0.1, 1 + self.slope * math.log(passages / self.nodes))
        fresh = min(self.fresh * (ef / LEAST_EF) ** self.power * grown, 2 * LINKS * ef)
        return max(-passages * math.expm1(-fresh / passages), min(ef, passages))


@dataclass(frozen=True)
class Machine:
    """What `measure_machine` found, for stores of one type and lists of one depth.

    `memory`: bytes there are; `bandwidth`: bytes a second that are read and written by copying. In seconds: `call`: a
    search of next to nothing; `opening`: a shard of a store; `reading`: a stored number, in order, to single
    precision; `fetching`: a stored passage, by its dim, read by its row and scored exactly; `rescoring`: the same in a
    later step of a funnel. `rates`: by batch.
    """

    memory: int
    threads: int
    bandwidth: float
    store_dtype: str
    depth: int
    call: float
    opening: float
    reading: float
    fetching: LinearCost
    rescoring: LinearCost
    rates: Mapping[int, Rates]
    growth: Growth

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.memory / 1e9:.0f} GB, copying {self.bandwidth / 1e9:.1f} GB/s"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def kept_of(seen: float, most: float) -> float:
    """How many of `seen` scores in random order enter a list of the `most` best at some time: k (1 + ln(n / k))."""
    return most * (1 + math.log(seen / most)) if seen > most else seen
