"""Candidates by a model: the corpus streams through it, and every query keeps its best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.mine.candidates import Candidates, best
from starbucks_retrieval.mine.docids import Docids
from starbucks_retrieval.mine.topics import Topics
from starbucks_retrieval.models import NestedEncoder, precision
from starbucks_retrieval.sizes import Sizes, check_size
from starbucks_retrieval.texts import Passage, Records, join_text

_WINDOW = 16384  # passages encoded at once, sorted by length among themselves
_TILE = 2**25  # scores held at once


class DenseEngine:
    """Inner products of the embeddings at one size; no layer above it is loaded. Raises UserError for a size out of reach.

    Memory: the queries' embeddings, those of one window of passages, and the lists.
    """

    def __init__(self, arguments: MineArguments) -> None:
        asked = arguments.asked_size
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path or "", layers=asked.layer if asked else None, device=arguments.device
        )
        self.size = asked or self.encoder.sizes.full
        check_size(self.size, self.encoder.num_layers, self.encoder.hidden_size)
        self.dtype = precision.choose(arguments.dtype, self.encoder.device)
        self.budget = arguments.max_tokens_per_batch or (65536 if self.encoder.device.type == "cuda" else 4096)

    @property
    def identity(self) -> dict[str, Any]:
        """Model, size and everything between a text and its embedding."""
        config = self.encoder.config
        return {
            "engine": "model",
            "fingerprint": self.encoder.fingerprint(self.size.layer),
            "size": str(self.size),
            "pooling": config.pooling,
            "normalize": config.normalize,
            "query_prefix": config.query_prefix,
            "passage_prefix": config.passage_prefix,
            "passage_field_separator": config.passage_field_separator,
            "query_max_len": self.encoder.max_length(True),
            "passage_max_len": self.encoder.max_length(False),
            "dtype": precision.name_of(self.dtype),
        }

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """The `depth` passages of highest score for each topic, and the score of every positive."""
        found = Candidates.none_yet(topics, depth)
        config = self.encoder.config
        texts = [(config.query_prefix + text).strip() for text in topics.texts]
        queries = self._embed(texts, True, "queries")  # [topics, dim]
        topic_of_pair = topics.topic_of_pair()
        by_row = np.argsort(topics.rows, kind="stable")
        pair_rows = topics.rows[by_row]
        start = 0
        for window in _windows(itertools.chain(corpus, topics.strays)):
            stop = start + len(window)
            texts = [join_text(passage, config.passage_field_separator, config.passage_prefix) for passage in window]
            vectors = self._embed(texts, False, f"passages {start + 1} to {stop} of {len(docids) + len(topics.strays)}")
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

    def _embed(self, texts: list[str], is_query: bool, label: str) -> np.ndarray:
        rows = self.encoder.tokenize(texts, self.encoder.max_length(is_query))
        sizes = Sizes([self.size])
        vectors = self.encoder.embed(rows, sizes, max_tokens=self.budget, dtype=self.dtype, label=label)[self.size]
        if not np.isfinite(vectors).all():
            raise UserError(f"embeddings of {label} hold NaN or infinity", "check the model and --dtype")
        return vectors

    def _keep_best(
        self, found: Candidates, queries: np.ndarray, vectors: np.ndarray, start: int, ranks: np.ndarray
    ) -> None:
        """Merge a window's passages [window, dim], rows from `start`, into the lists, in no order yet."""
        depth = found.rows.shape[1]
        device = self.encoder.device
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
