"""The model: bytes and seconds of every way to search, from a machine's measured pieces.

Of N passages at dim d, k results a query, B queries at once, seconds of one query are, with `Machine`'s names:

- fetched(n): n × fetching(d) + opening × S × (1 - exp(-n B / S)) / B, in a store of S = ⌈N / 16384⌉ shards;
- flat: N × scan(d) + choose × kept(n, k) for each block of n passages + (N d × reading + S × opening) / B + fetched(k),
  with a few more than k; kept(n, k) = k (1 + ln(n / k)) of n scores in random order enter a list of the k best;
- IVF-PQ, m bytes a code, nlist lists of which nprobe are looked at, so c = N nprobe / nlist codes: the nlist centroids
  and 256 d numbers of tables scanned, c × code(m) + keep × kept(c, k') + fetched(k'), where k' = RESCORE × k.
  From 65,536 lists on the centroids are in an HNSW, searched with ef = nprobe;
- HNSW: ef = max(64, k'), hops and visits of `Growth`: ef × hop + visits(N, ef) × visit(d) + fetched(k');
- funnel: flat at the smallest size, and fetched(shortlist) at the other, with `rescoring` for `fetching`;

and `call` / B in each. Everything read is taken to lie in memory: where `fits` is no, the disk adds what it adds. Lists are
taken to be of one length, and embedding a query, reading ids and writing a run are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from starbucks_retrieval.search.estimate.machine import LEAST_EF, LINKS, RESCORE, Machine, Rates, kept_of
from starbucks_retrieval.search.funnel.funnel import Funnel, FunnelStep, grows
from starbucks_retrieval.search.plan import Plan, make_plan, parse_bytes
from starbucks_retrieval.sizes import Size

SHARD = 16384  # rows, as `encode` writes them
SHORTLIST = 1000  # of the funnel, or the depth where that is more
_GRAPH_FROM = 65536  # lists; FAISS's guidelines put an HNSW over so many centroids
_FEWEST = 39  # passages a list, below which FAISS warns
_ID, _LINK, _SINGLE = 8, 4, 4  # bytes
# FAISS's graph beside its vectors: links of the lowest level, of the levels above (one node in LINKS reaches each), and
# for every node an offset and a level.
GRAPH_BYTES = 2 * LINKS * _LINK + LINKS * _LINK / (LINKS - 1) + 8 + 4


@dataclass(frozen=True)
class EstimateRow:
    """One way to search at one size.

    `way`: what to give to --index, or to --funnel. `disk`: bytes of stores and index; `memory`: bytes that must stay in
    memory for `milliseconds` (a query, by batch) to hold; `least`: bytes that it works with, slower; `fits`: whether
    this machine has `memory`; `fetched`: stored vectors that a query reads by their row, from the disk unless they
    happen to be in memory; `settings`: for --index_search.
    """

    way: str
    size: Size
    disk: int
    memory: int
    least: int
    milliseconds: dict[int, float]
    fits: bool
    fetched: int
    settings: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self) | {"size": str(self.size)}


def estimate(
    machine: Machine, passages: float, sizes: Sequence[Size], *, max_memory: str | int = "2GB"
) -> list[EstimateRow]:
    """Flat, IVF-PQ, HNSW and, from the smallest size on, a funnel: rows for each size, in the order of `sizes`.

    Depth, store type and batches are those that `machine` was measured for. Ids are taken to be row numbers.
    """
    model = _Model(machine, math.ceil(passages), parse_bytes(max_memory))
    return [row for size in sizes for row in model.rows(size, sizes[0])]


def lists_for(passages: int) -> int:
    """nlist: the power of two nearest to 8 √N, so between 4 √N and 16 √N, unless that leaves fewer than 39 a list."""
    most = max(1, passages // _FEWEST)
    return 2 ** min(round(math.log2(8 * math.sqrt(passages))), int(math.log2(most)))


def probes_for(lists: int, passages: int, wanted: int) -> int:
    """nprobe: √nlist or, where so many lists hold less than twice the rows `wanted`, more of them; a power of two."""
    least = max(math.sqrt(lists), min(1.0, 2 * wanted / passages) * lists)
    return 2 ** math.ceil(math.log2(least))


def code_bytes(dim: int) -> int:
    """PQ's m: the largest divisor of `dim` up to a quarter of it and to 64, above which FAISS advises scalars instead."""
    return next(m for m in range(max(1, min(64, dim // 4)), 0, -1) if dim % m == 0)


class _Model:
    def __init__(self, machine: Machine, passages: int, limit: int) -> None:
        self.machine, self.passages, self.limit = machine, passages, limit
        self.wide = min(RESCORE * machine.depth, passages)
        self.shards = -(-passages // SHARD)

    def rows(self, size: Size, smallest: Size) -> Iterator[EstimateRow]:
        """Every way at one size."""
        yield self._flat(size)
        yield self._ivf_pq(size)
        yield self._hnsw(size)
        if grows(smallest, size):
            yield self._funnel(smallest, size)

    def _flat(self, size: Size) -> EstimateRow:
        vectors, disk = self._store_bytes(size)
        least, plan = min(vectors, self.limit), self._plan(size.dim, self.machine.depth)
        return self._row("flat", size, disk, vectors, least, plan.candidates, partial(self._scanned, size.dim, plan))

    def _ivf_pq(self, size: Size) -> EstimateRow:
        lists, width = lists_for(self.passages), code_bytes(size.dim)
        probes = probes_for(lists, self.passages, self.wide)
        graph = lists >= _GRAPH_FROM
        codes = self.passages * probes / lists
        found = math.ceil(min(self.wide, codes))
        index = self.passages * (width + _ID) + lists * (_SINGLE * size.dim + graph * GRAPH_BYTES)

        def seconds(batch: int) -> float:
            rates = self.machine.rates[batch]
            nearest = self._walked(rates, lists, probes, size.dim) if graph else lists * rates.scan(size.dim)
            looked = codes * rates.code(width) + rates.keep * kept_of(codes, self.wide)
            return nearest + 256 * rates.scan(size.dim) + looked + self._fetched(size.dim, found, batch)

        way = f"IVF{lists}{'_HNSW32' if graph else ''},PQ{width}"
        index += 256 * _SINGLE * size.dim
        disk = self._store_bytes(size)[1] + index
        return self._row(way, size, disk, index, index, found, seconds, f"nprobe={probes}")

    def _hnsw(self, size: Size) -> EstimateRow:
        ef = max(LEAST_EF, self.wide)
        index = self.passages * (_SINGLE * size.dim + GRAPH_BYTES)

        def seconds(batch: int) -> float:
            walked = self._walked(self.machine.rates[batch], self.passages, ef, size.dim)
            return walked + self._fetched(size.dim, self.wide, batch)

        disk = self._store_bytes(size)[1] + index
        return self._row(f"HNSW{LINKS}", size, disk, index, index, self.wide, seconds, f"efSearch={ef}")

    def _funnel(self, small: Size, size: Size) -> EstimateRow:
        keep = min(max(SHORTLIST, self.machine.depth), self.passages)
        vectors, disk = self._store_bytes(small)
        plan = self._plan(small.dim, keep)

        def seconds(batch: int) -> float:
            rescored = keep * self.machine.rescoring(size.dim) + self._opened(keep, batch)
            return self._scanned(small.dim, plan, batch) + rescored

        way = str(Funnel((FunnelStep(small, keep), FunnelStep(size))))
        disk += self._store_bytes(size)[1]
        return self._row(way, size, disk, vectors, min(vectors, self.limit), keep, seconds)

    def _row(
        self,
        way: str,
        size: Size,
        disk: float,
        memory: float,
        least: float,
        fetched: int,
        seconds: Callable[[int], float],
        settings: str = "",
    ) -> EstimateRow:
        call, batches = self.machine.call, self.machine.rates
        milliseconds = {batch: 1000 * (seconds(batch) + call / batch) for batch in batches}
        fits = memory <= self.machine.memory
        return EstimateRow(way, size, round(disk), round(memory), round(least), milliseconds, fits, fetched, settings)

    def _store_bytes(self, size: Size) -> tuple[int, int]:
        """Of the vectors of a store, and of all of it."""
        vectors = self.passages * size.dim * (2 if self.machine.store_dtype == "float16" else 4)
        return vectors, vectors + self.passages * len(str(self.passages - 1))

    def _plan(self, dim: int, depth: int) -> Plan:
        return make_plan(self.limit, -1, min(depth, self.passages), self.passages, dim)

    def _scanned(self, dim: int, plan: Plan, batch: int) -> float:
        rates, blocks = self.machine.rates[batch], -(-self.passages // plan.block_for(batch, dim))
        shared = self.passages * dim * self.machine.reading + self.shards * self.machine.opening
        chosen = blocks * kept_of(self.passages / blocks, plan.candidates) * rates.choose
        scanned = self.passages * rates.scan(dim) + chosen
        return scanned + shared / batch + self._fetched(dim, plan.candidates, batch)

    def _fetched(self, dim: int, count: int, batch: int) -> float:
        return count * self.machine.fetching(dim) + self._opened(count, batch)

    def _opened(self, count: int, batch: int) -> float:
        return -self.shards * math.expm1(-count * batch / self.shards) * self.machine.opening / batch

    def _walked(self, rates: Rates, passages: int, ef: int, dim: int) -> float:
        return min(ef, passages) * rates.hop + self.machine.growth.visits(passages, ef) * rates.visit(dim)
