"""A model at one size: embeddings of queries and of passages, and scores of pairs of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments
from starbucks_retrieval.models import NestedEncoder, precision
from starbucks_retrieval.sizes import Size, Sizes, check_size

T = TypeVar("T", bound=Hashable)


class BiEncoder:
    """No layer above the size (by default the model's full one), and that of its passages, is loaded. Raises UserError for a size out of reach."""

    kind = "bi-encoder"

    def __init__(self, name_or_path: str, size: Size | None, arguments: MineArguments) -> None:
        self.encoder = NestedEncoder.from_pretrained(
            name_or_path, layers=size.layer if size else None, passage_layers=True, device=arguments.device
        )
        self.size = size or self.encoder.sizes.full
        self.passage_size = self.encoder.config.passage_size(self.size)
        check_size(self.size, self.encoder.num_layers, self.encoder.hidden_size)
        self.dtype = precision.choose(arguments.dtype, self.encoder.device)
        self.budget = arguments.token_budget(self.encoder.device.type)

    def queries(self, texts: Sequence[str], label: str) -> np.ndarray:
        """Embeddings, float32 [texts, dim], with progress shown under the label."""
        prefix = self.encoder.config.query_prefix
        return self._embed([(prefix + text).strip() for text in texts], True, label)

    def passages(self, passages: Sequence[Passage], label: str) -> np.ndarray:
        """Embeddings, float32 [passages, dim], with progress shown under the label."""
        config = self.encoder.config
        texts = [join_text(passage, config.passage_field_separator, config.passage_prefix) for passage in passages]
        return self._embed(texts, False, label)

    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray:
        """Inner product, of unit vectors where the model normalises, divided by its temperature: float32 [pairs].

        That is what the model was trained to take the softmax of. Each distinct text is encoded once.
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


def _distinct(items: Iterable[T]) -> tuple[list[T], np.ndarray]:
    """The distinct items in the order of their first appearance, and the place of each item among them."""
    places: dict[T, int] = {}
    at = [places.setdefault(item, len(places)) for item in items]
    return list(places), np.array(at, np.int64)
