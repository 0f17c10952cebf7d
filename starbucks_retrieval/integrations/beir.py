"""Models for beir's DenseRetrievalExactSearch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.integrations.base import SizedModel


class BeirModel(SizedModel):
    """A model at one size for `beir.retrieval.search.dense.DenseRetrievalExactSearch` and similar classes.

    Evaluate with score_function "dot": models are scored by the dot product, whether they normalise or not. The
    arguments are those of `SizedModel`.

    Example:
        >>> from beir.retrieval.search.dense import DenseRetrievalExactSearch  # doctest: +SKIP
        >>> search = DenseRetrievalExactSearch(BeirModel("my-model", "6:128"), batch_size=64)  # doctest: +SKIP
    """

    def encode_queries(self, queries: Sequence[str], batch_size: int = 0, **options: Any) -> torch.Tensor | np.ndarray:
        """Return embeddings [queries, dim], as a tensor if `convert_to_tensor`; other options are ignored."""
        return _as_tensor(self.embed_queries(queries), options)

    def encode_corpus(
        self,
        corpus: Sequence[Mapping[str, str]] | Mapping[str, Sequence[str]] | Sequence[str],
        batch_size: int = 0,
        **options: Any,
    ) -> torch.Tensor | np.ndarray:
        """Return embeddings [passages, dim] of a list of passages, a mapping of columns, or a list of texts."""
        if isinstance(corpus, Mapping):
            texts, titles = list(corpus["text"]), list(corpus.get("title") or [])
        elif corpus and isinstance(corpus[0], str):
            texts, titles = list(corpus), []  # type: ignore[arg-type]
        else:
            texts = [passage["text"] for passage in corpus]  # type: ignore[index]
            titles = [passage.get("title") or "" for passage in corpus]  # type: ignore[union-attr]
        return _as_tensor(self.embed_passages(texts, titles), options)


def _as_tensor(vectors: np.ndarray, options: Mapping[str, Any]) -> torch.Tensor | np.ndarray:
    return torch.from_numpy(vectors) if options.get("convert_to_tensor") else vectors
