"""Candidates by a bi-encoder: the corpus is encoded in windows, and each query keeps its best passages."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from starbucks_retrieval.data import Passage, Records, join_text
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.mine.candidates import Candidates, best_rows
from starbucks_retrieval.mine.topics import Docids, Topics
from starbucks_retrieval.models import NestedEncoder, precision
from starbucks_retrieval.sizes import Size, Sizes, pair_name

T = TypeVar("T", bound=Hashable)

_WINDOW = 16384  # passages encoded at once, sorted by length among themselves
_SCORES = 2**25  # scores in memory at once


class BiEncoder:
    """A model at one size, as a source of candidates and as a teacher; layers above that size are not loaded.

    A search keeps the embeddings of all queries, those of one window of passages, and the candidates in memory.

    Args:
        name_or_path: Model folder or hub name.
        size: Size of the query embeddings; None for the full size. Passages use the size that the model stores for it.
        arguments: Flags for the device, the precision and the batch size.

    Raises:
        UserError: The model cannot be read, or lacks the size.
    """

    kind = "bi-encoder"

    def __init__(self, name_or_path: str, size: Size | None, arguments: MineArguments) -> None:
        device = resolve_device(arguments.device)
        self.encoder = NestedEncoder.from_pretrained(
            name_or_path,
            layers=size.layer if size else None,
            passage_layers=True,
            device=device,
            weights_dtype=precision.weights_dtype(arguments.weights_dtype, arguments.dtype, device),
        )
        self.size = size or self.encoder.sizes.full
        self.passage_size = self.encoder.config.passage_size(self.size)
        self.encoder.check(Sizes([self.size]))
        self.dtype = precision.autocast_dtype(arguments.dtype, device, self.encoder.autocast_dtype)
        self.budget = arguments.token_budget(self.encoder.device.type)

    def queries(self, texts: Sequence[str], label: str) -> np.ndarray:
        """Encode queries.

        Args:
            texts: The queries, without the model's prefix, which is added.
            label: Names the progress bar.

        Returns:
            (texts, dim) float32.
        """
        prefix = self.encoder.config.query_prefix
        return self._embed([(prefix + text).strip() for text in texts], True, label)

    def passages(self, passages: Sequence[Passage], label: str) -> np.ndarray:
        """Encode passages.

        Args:
            passages: Titles and texts are joined, and the model's prefix is added.
            label: Names the progress bar.

        Returns:
            (passages, dim) float32.
        """
        config = self.encoder.config
        texts = [join_text(passage, config.passage_field_separator, config.passage_prefix) for passage in passages]
        return self._embed(texts, False, label)

    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray:
        """Score pairs by inner products divided by the model's temperature, as in training.

        Vectors have length 1 if the model normalises. Each distinct text is encoded once.

        Args:
            pairs: (query, passage) each, without the model's prefixes.
            label: Begins the names of the progress bars.

        Returns:
            (pairs,) float32.
        """
        queries, query_of = _distinct(query for query, _ in pairs)
        passages, passage_of = _distinct(passage for _, passage in pairs)
        left, right = self.queries(queries, f"{label}, queries"), self.passages(passages, f"{label}, passages")
        products = np.einsum("ij,ij->i", left[query_of], right[passage_of])
        return products / np.float32(self.encoder.config.temperature)

    def _embed(self, texts: list[str], is_query: bool, label: str) -> np.ndarray:
        rows = self.encoder.tokenize(texts, self.encoder.max_length(is_query))
        size = self.size if is_query else self.passage_size
        sizes = Sizes([size])
        vectors = self.encoder.embed(rows, sizes, max_tokens=self.budget, dtype=self.dtype, label=label)[size]
        if not np.isfinite(vectors).all():
            raise UserError(f"embeddings of {label} hold NaN or infinity", "check the model and --dtype")
        return vectors

    @property
    def identity(self) -> dict[str, Any]:
        """The model, its size and all settings that change an embedding."""
        encoder, config = self.encoder, self.encoder.config
        return {
            "engine": "model",
            "fingerprint": encoder.fingerprint(max(self.size.layer, self.passage_size.layer)),
            "size": pair_name(self.size, self.passage_size),
            "pooling": config.pooling,
            "normalize": config.normalize,
            "query_prefix": config.query_prefix,
            "passage_prefix": config.passage_prefix,
            "passage_field_separator": config.passage_field_separator,
            "query_max_len": encoder.max_length(True),
            "passage_max_len": encoder.max_length(False),
            "dtype": precision.dtype_name(self.dtype, encoder.autocast_dtype),
        }

    def search(self, topics: Topics, corpus: Records[Passage], docids: Docids, depth: int) -> Candidates:
        """Return the `depth` best passages of each topic, and the score of every positive."""
        found = Candidates.empty(topics, depth)
        queries = self.queries(topics.texts, "queries")  # [topics, dim]
        topic_of_pair = topics.topic_of_pair()
        by_row = np.argsort(topics.rows, kind="stable")
        pair_rows = topics.rows[by_row]
        start, passages = 0, itertools.chain(corpus, topics.out_of_corpus)
        while window := list(itertools.islice(passages, _WINDOW)):
            stop = start + len(window)
            label = f"passages {start + 1} to {stop} of {len(docids) + len(topics.out_of_corpus)}"
            vectors = self.passages(window, label)
            first, last = np.searchsorted(pair_rows, (start, stop))
            for pairs in np.array_split(by_row[first:last], max(1, (last - first) // 8192)):
                positives = vectors[topics.rows[pairs] - start]
                found.positive_scores[pairs] = np.einsum("ij,ij->i", queries[topic_of_pair[pairs]], positives)
            self._keep_best(found, queries, vectors[: max(0, len(docids) - start)], start, docids.ranks)
            start = stop
        for rows, scores in zip(found.rows, found.scores):
            order = best_rows(scores, np.where(rows < 0, -1, docids.ranks[rows]), depth)
            rows[:], scores[:] = rows[order], scores[order]
        return found

    def _keep_best(
        self, found: Candidates, queries: np.ndarray, vectors: np.ndarray, start: int, ranks: np.ndarray
    ) -> None:
        """Merge the passages [window, dim] at rows from `start` into the candidates, not yet sorted."""
        depth = found.rows.shape[1]
        device = self.encoder.device
        passages = torch.from_numpy(vectors).to(device).T  # [dim, window]
        height = max(1, _SCORES // (len(vectors) + depth))
        for top in range(0, len(queries), height):
            block = slice(top, top + height)
            previous = torch.from_numpy(found.scores[block]).to(device)
            scores = torch.cat([previous, torch.from_numpy(queries[block]).to(device) @ passages], 1)
            kept = scores.topk(depth, sorted=False)
            floor = kept.values.min(1, keepdim=True).values
            contested = ((scores >= floor).sum(1) > depth) & torch.isfinite(floor[:, 0])
            positions = kept.indices.cpu().numpy()
            for line in torch.nonzero(contested)[:, 0].tolist():
                # topk picks arbitrarily among equal scores; the docid decides.
                new = np.arange(start, start + len(vectors))
                rows = np.concatenate([found.rows[top + line], new])
                positions[line] = best_rows(scores[line].cpu().numpy(), np.where(rows < 0, -1, ranks[rows]), depth)
            old = np.take_along_axis(found.rows[block], np.minimum(positions, depth - 1), 1)
            found.rows[block] = np.where(positions < depth, old, positions - depth + start)
            found.scores[block] = torch.gather(scores, 1, torch.from_numpy(positions).to(device)).cpu().numpy()


def _distinct(items: Iterable[T]) -> tuple[list[T], np.ndarray]:
    """The distinct items in order of first appearance, and the index of each item among them."""
    index: dict[T, int] = {}
    positions = [index.setdefault(item, len(index)) for item in items]
    return list(index), np.array(positions, np.int64)
