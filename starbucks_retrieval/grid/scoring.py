"""The cells of one data set, from stored taps: a pass over the passages of each layer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from ir_measures import Measure

from starbucks_retrieval.grid.all_dims import RowsByDim, search_all_dims
from starbucks_retrieval.grid.encoding import Stores
from starbucks_retrieval.grid.scorer import Scorer
from starbucks_retrieval.metrics.measures import Qrels
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How cells are scored. `asymmetric`: queries of every layer against passages of every layer."""

    dims: Sequence[int]
    measures: Sequence[Measure]
    depth: int
    normalize: bool
    asymmetric: bool = False
    remove_identical_ids: bool = False
    max_memory: str = "2GB"
    device: str = "cpu"

    def cells(
        self, dataset: str, pooled_layers: Mapping[int, Stores], qrels: Qrels, rows: np.ndarray
    ) -> Iterator[tuple[list[Cell], list[str]]]:
        """For each size, or pair of sizes, a cell a measure, and the kinds of serious findings about its rankings.

        `rows`: of the stores of queries, those that are judged.
        """
        for layer, stores in pooled_layers.items():
            # Queries of several layers are one long list to a pass over the passages of one.
            sides = list(pooled_layers) if self.asymmetric else [layer]
            vectors = np.concatenate([pooled_layers[side].queries.vectors(rows).astype(np.float32) for side in sides])
            query_ids = stores.queries.ids(rows)
            places = list(itertools.product(sides, self.dims))
            count = stores.passages.count
            judges = {place: Scorer(qrels, self.measures, self.remove_identical_ids, count) for place in places}
            found = search_all_dims(
                vectors,
                stores.passages,
                self.dims,
                self.depth,
                normalize=self.normalize,
                max_memory=self.max_memory,
                device=self.device,
                label=f"{dataset}, layer {layer}",
            )
            for some in found:
                for side, run in _runs(some, stores.passages, query_ids):
                    judges[sides[side], some.dim].add(run)
            for (side, dim), judge in judges.items():
                other = Size(layer, dim) if self.asymmetric else None
                serious = [finding.kind for finding in judge.findings() if finding.serious]
                yield judge.cells(dataset, Size(side, dim), other), serious


def _runs(
    found: RowsByDim, passages: EmbeddingStore, query_ids: Sequence[str]
) -> Iterator[tuple[int, dict[str, dict[str, float]]]]:
    """What was found, as a run for each side: queries come side after side, all of one before those of the next."""
    # Queries share many of their passages: each id is read and decoded once.
    distinct, at = np.unique(found.rows, return_inverse=True)
    docids = np.array(passages.ids(distinct), dtype=object)[at].reshape(found.rows.shape)
    lines = range(found.start, found.start + len(docids))
    for side, own in itertools.groupby(lines, key=lambda line: line // len(query_ids)):
        yield (
            side,
            {
                query_ids[line % len(query_ids)]: dict(
                    zip(docids[line - found.start].tolist(), found.scores[line - found.start].tolist())
                )
                for line in own
            },
        )
