"""Pooled outputs of every layer: encode them into stores that resume, and score every size from them."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ir_measures import Measure

from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.evaluate import Finding, preflight
from starbucks_retrieval.evaluate.preflight import TOP
from starbucks_retrieval.grid import EncodingArguments, GridArguments
from starbucks_retrieval.grid.all_dims import RowsByDim, search_all_dims
from starbucks_retrieval.metrics.measures import Qrels, mean, remove_identical_ids, score, trec_order
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, open_store


class LayerStores(NamedTuple):
    """Stores of the pooled outputs of one layer, at the widest dim of the grid.

    Attributes:
        queries: The store of the queries.
        passages: The store of the passages.
    """

    queries: EmbeddingStore
    passages: EmbeddingStore


def encode_arguments(arguments: GridArguments, encoding: EncodingArguments) -> EncodeArguments:
    """Return the flags of `encode`, without data, sizes and output.

    Args:
        arguments: Names the model, and says whether embeddings of another job may be replaced.
        encoding: All other flags, which are copied.
    """
    return EncodeArguments(
        model_name_or_path=arguments.model_name_or_path, overwrite=arguments.overwrite, **dataclasses.asdict(encoding)
    )


def encode_layers(queries: EncodeArguments, passages: EncodeArguments) -> dict[int, LayerStores]:
    """Encode the queries and passages of a data set, or resume doing so, and return their stores by layer.

    Args:
        queries: The flags of `encode` for the queries; its sizes are the layers at the widest dim of the grid.
        passages: The flags for the passages, with the same sizes.
    """
    encode(queries)
    encode(passages)
    folders = queries.encode_output_path, passages.encode_output_path
    sizes = Sizes.parse(queries.sizes or "")
    return {size.layer: LayerStores(*(open_store(path, size) for path in folders)) for size in sizes}


def remove_layers(stores: Sequence[LayerStores], root: Path) -> None:
    """Delete the stores, and then empty folders up to `root`; nothing else is touched.

    Args:
        stores: The stores of every data set and layer.
        root: The highest folder to delete. It stays if it holds anything else.
    """
    folders = [folder for pair in stores for store in pair for folder in store.folders]
    for folder in folders:
        shutil.rmtree(folder)
    for parent in sorted({parent for folder in folders for parent in folder.parents}, reverse=True):
        if (parent == root or root in parent.parents) and not any(parent.iterdir()):
            parent.rmdir()


# Findings that need more than the top of a run, or cannot occur here.
_SKIPPED_FINDINGS = ("missing_queries", "truncated_run", "no_judged_documents")


class Scorer:
    """Scores the rankings of one size by every measure, as `evaluate` does: every judged query counts.

    Args:
        qrels: Relevance judgements.
        measures: ir-measures' measures.
        remove_identical: Whether to drop results with their query's id.
        documents: Number of documents that are searched.
    """

    def __init__(self, qrels: Qrels, measures: Sequence[Measure], remove_identical: bool, documents: int) -> None:
        self.documents = documents
        self.qrels = qrels
        self.measures = measures
        self.remove_identical = remove_identical
        self._values: dict[str, dict[str, float]] = {str(m): dict.fromkeys(qrels, 0.0) for m in measures}
        self._tops: dict[str, dict[str, float]] = {}

    def add(self, run: Mapping[str, Mapping[str, float]]) -> None:
        """Add the rankings of some judged queries."""
        kept = remove_identical_ids(run) if self.remove_identical else run
        judged = {query_id: self.qrels[query_id] for query_id in kept}
        for measure, values in score(judged, kept, self.measures).per_query.items():
            self._values[measure].update(values)
        for query_id, ranking in kept.items():
            # One more than preflight checks, to see ties at its cutoff.
            self._tops[query_id] = {docid: ranking[docid] for docid in trec_order(ranking)[: TOP + 1]}

    def cells(self, dataset: str, size: Size, passage_size: Size | None = None) -> list[Cell]:
        """Return one cell per measure, with the value of each query.

        Args:
            dataset: Name of the data set.
            size: Size of the queries.
            passage_size: Size of the passages, only where it differs.
        """
        made = []
        for measure in self.measures:
            values = self._values[str(measure)]
            value = mean(measure, values.values())
            made.append(Cell(dataset, str(measure), size, value, len(values), passage_size, dict(values)))
        return made

    def findings(self) -> list[Finding]:
        """Return the findings of preflight for the top of these rankings."""
        found = preflight(self._tops, self.qrels, documents=self.documents)
        return [finding for finding in found if finding.kind not in _SKIPPED_FINDINGS]


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How cells are scored.

    Attributes:
        dims: Ascending.
        measures: ir-measures' measures.
        depth: Passages per query.
        normalize: Whether embeddings have length 1.
        asymmetric: Score queries of every layer against passages of every layer.
        remove_identical_ids: Drop results with their query's id.
        max_memory: For vectors and result lists, such as 2GB.
        device: Of the scoring.
    """

    dims: Sequence[int]
    measures: Sequence[Measure]
    depth: int
    normalize: bool
    asymmetric: bool = False
    remove_identical_ids: bool = False
    max_memory: str = "2GB"
    device: str = "cpu"

    def cells(
        self, dataset: str, pooled_layers: Mapping[int, LayerStores], qrels: Qrels, rows: np.ndarray
    ) -> Iterator[tuple[list[Cell], list[str]]]:
        """Yield the cells of each size, or pair of sizes, and the kinds of serious findings about its rankings.

        Args:
            dataset: Name in cells.
            pooled_layers: Stores of each layer.
            qrels: Relevance judgements.
            rows: Rows of the judged queries in the stores.
        """
        for layer, stores in pooled_layers.items():
            # Queries of several layers are searched as one long list in a pass over the passages of one layer.
            sides = list(pooled_layers) if self.asymmetric else [layer]
            vectors = np.concatenate([pooled_layers[side].queries.vectors(rows).astype(np.float32) for side in sides])
            query_ids = stores.queries.ids(rows)
            count = stores.passages.count
            scorers = {
                pair: Scorer(qrels, self.measures, self.remove_identical_ids, count)
                for pair in itertools.product(sides, self.dims)
            }
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
            for part in found:
                for side, run in _runs(part, stores.passages, query_ids):
                    scorers[sides[side], part.dim].add(run)
            for (side, dim), scorer in scorers.items():
                other = Size(layer, dim) if self.asymmetric else None
                serious = [finding.kind for finding in scorer.findings() if finding.serious]
                yield scorer.cells(dataset, Size(side, dim), other), serious


def _runs(
    found: RowsByDim, passages: EmbeddingStore, query_ids: Sequence[str]
) -> Iterator[tuple[int, dict[str, dict[str, float]]]]:
    """The results as one run per query layer; the queries of one layer come before those of the next."""
    # Queries share many passages: each id is read and decoded once.
    distinct, at = np.unique(found.rows, return_inverse=True)
    docids = np.array(passages.ids(distinct), dtype=object)[at].reshape(found.rows.shape)
    lines = range(found.start, found.start + len(docids))
    for side, group in itertools.groupby(lines, key=lambda line: line // len(query_ids)):
        yield (
            side,
            {
                query_ids[line % len(query_ids)]: dict(
                    zip(docids[line - found.start].tolist(), found.scores[line - found.start].tolist())
                )
                for line in group
            },
        )
