"""Candidates by a model: the corpus streams through it, and every query keeps its best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.data import Passage, Records
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.bi_encoder import BiEncoder
from starbucks_retrieval.mine.candidates import Candidates, best
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics
from starbucks_retrieval.models import precision
from starbucks_retrieval.sizes import pair_name

_WINDOW = 16384  # passages encoded at once, sorted by length among themselves
_TILE = 2**25  # scores held at once


class DenseEngine:
    """Inner products of the embeddings at one size; no layer above it is loaded. Raises UserError for a size out of reach.

    Memory: the queries' embeddings, those of one window of passages, and the lists.
    """

    def __init__(self, arguments: MineArguments) -> None:
        self.model = BiEncoder(arguments.model_name_or_path or "", arguments.asked_size, arguments)

    @property
    def identity(self) -> dict[str, Any]:
        """Model, size and everything between a text and its embedding."""
        encoder, size = self.model.encoder, self.model.size
        config = encoder.config
        return {
            "engine": "model",
            "fingerprint": encoder.fingerprint(max(size.layer, self.model.passage_size.layer)),
            "size": pair_name(size, self.model.passage_size),
            "pooling": config.pooling,
            "normalize": config.normalize,
            "query_prefix": config.query_prefix,
            "passage_prefix": config.passage_prefix,
            "passage_field_separator": config.passage_field_separator,
            "query_max_len": encoder.max_length(True),
            "passage_max_len": encoder.max_length(False),
            "dtype": precision.name_of(self.model.dtype),
        }

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """The `depth` passages of highest score for each topic, and the score of every positive."""
        found = Candidates.none_yet(topics, depth)
        queries = self.model.queries(topics.texts, "queries")  # [topics, dim]
        topic_of_pair = topics.topic_of_pair()
        by_row = np.argsort(topics.rows, kind="stable")
        pair_rows = topics.rows[by_row]
        start = 0
        for window in _windows(itertools.chain(corpus, topics.out_of_corpus)):
            stop = start + len(window)
            label = f"passages {start + 1} to {stop} of {len(docids) + len(topics.out_of_corpus)}"
            vectors = self.model.passages(window, label)
            first, last = np.searchsorted(pair_rows, (start, stop))
            for pairs in np.array_split(by_row[first:last], max(1, (last - first) // 8192)):
                own = vectors[topics.rows[pairs] - start]
                found.positive_scores[pairs] = np.einsum("ij,ij->i", queries[topic_of_pair[pairs]], own)
            self._keep_best(found, queries, vectors[: max(0, len(docids) - start)], start, docids.ranks)
            start = stop
        for rows, scores in zip(found.rows, found.scores):
            order = best(scores, np.where(rows < 0, -1, docids.ranks[rows]), depth)
            rows[:], scores[:] = rows[order], scores[order]
        return found

    def _keep_best(
        self, found: Candidates, queries: np.ndarray, vectors: np.ndarray, start: int, ranks: np.ndarray
    ) -> None:
        """Merge a window's passages [window, dim], rows from `start`, into the lists, in no order yet."""
        depth = found.rows.shape[1]
        device = self.model.encoder.device
        passages = torch.from_numpy(vectors).to(device).T  # [dim, window]
        height = max(1, _TILE // (len(vectors) + depth))
        for top in range(0, len(queries), height):
            tile = slice(top, top + height)
            held = torch.from_numpy(found.scores[tile]).to(device)
            scores = torch.cat([held, torch.from_numpy(queries[tile]).to(device) @ passages], 1)
            kept = scores.topk(depth, sorted=False)
            floor = kept.values.min(1, keepdim=True).values
            contested = ((scores >= floor).sum(1) > depth) & torch.isfinite(floor[:, 0])
            places = kept.indices.cpu().numpy()
            for line in torch.nonzero(contested)[:, 0].tolist():
                # topk takes any of equal scores; the docid says which.
                new = np.arange(start, start + len(vectors))
                rows = np.concatenate([found.rows[top + line], new])
                places[line] = best(scores[line].cpu().numpy(), np.where(rows < 0, -1, ranks[rows]), depth)
            old = np.take_along_axis(found.rows[tile], np.minimum(places, depth - 1), 1)
            found.rows[tile] = np.where(places < depth, old, places - depth + start)
            found.scores[tile] = torch.gather(scores, 1, torch.from_numpy(places).to(device)).cpu().numpy()


def _windows(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    while window := list(itertools.islice(passages, _WINDOW)):
        yield window
