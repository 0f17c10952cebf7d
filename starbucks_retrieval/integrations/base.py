"""The base of embedding consumers: a model at one size, with texts prepared as in every other stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from starbucks_retrieval.data import Passage, join_text
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.precision import Precision, autocast_dtype
from starbucks_retrieval.sizes import Size, Sizes


class SizedModel:
    """Embed queries and passages at one size.

    Args:
        model: A folder, a hub name, or an encoder that is open already.
        size: The size, such as `6:128`; by default the model's full size.
        device: `cpu`, `cuda`, `cuda:1` …; by default a GPU where there is one. Not for an open encoder.
        dtype: The precision of the computation.
        max_tokens: Rows times longest row of a batch. Batches are cut by tokens; the batch size of the consumer is ignored.

    Raises:
        UserError: The model cannot be read, or does not have that size.
    """

    def __init__(
        self,
        model: str | Path | NestedEncoder,
        size: Size | str | None = None,
        *,
        device: str | None = None,
        dtype: Precision = "fp32",
        max_tokens: int = 8192,
    ) -> None:
        size = Size.parse(size) if isinstance(size, str) else size
        if isinstance(model, NestedEncoder):
            self.encoder = model
        else:
            layers = size.layer if size else None
            self.encoder = NestedEncoder.from_pretrained(model, layers=layers, passage_layers=True, device=device)
        self.size = size or self.encoder.sizes.full
        self.encoder.check(Sizes([self.size]))
        self._dtype = autocast_dtype(dtype, self.encoder.device)
        self._max_tokens = max_tokens

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of queries, float32 [texts, dim]."""
        return self._embed(texts, True)

    def embed_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> np.ndarray:
        """Return the embeddings of passages, float32 [texts, dim].

        Args:
            texts: The texts of the passages.
            titles: Their titles, empty where a passage has none. The model's own separator joins title and text.
        """
        # `encode` adds the prefix.
        separator = self.encoder.config.passage_field_separator
        titles = titles or [""] * len(texts)
        return self._embed([join_text(Passage("", t, text), separator) for t, text in zip(titles, texts)], False)

    def _embed(self, texts: Sequence[str], is_query: bool) -> np.ndarray:
        size = self.size if is_query else self.encoder.config.passage_size(self.size)
        embeddings = self.encoder.encode(
            list(texts), Sizes([size]), is_query=is_query, max_tokens=self._max_tokens, dtype=self._dtype
        )
        return embeddings[size]
