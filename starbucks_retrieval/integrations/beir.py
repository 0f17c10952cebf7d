"""The model that beir's DenseRetrievalExactSearch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.integrations.model import SizedModel


class BeirModel(SizedModel):
    """A model at one size, for `beir.retrieval.search.dense.DenseRetrievalExactSearch` and its kin.

    Evaluate with score_function "dot": the dot product is what models are scored by here, normalised or not.
    """

    def encode_queries(self, queries: Sequence[str], batch_size: int = 0, **options: Any) -> torch.Tensor | np.ndarray:
        """Embeddings [queries, dim], a tensor if `convert_to_tensor`. `batch_size` and other options are ignored."""
        return _as_asked(self.embed_queries(queries), options)

    def encode_corpus(
        self,
        corpus: Sequence[Mapping[str, str]] | Mapping[str, Sequence[str]] | Sequence[str],
        batch_size: int = 0,
        **options: Any,
    ) -> torch.Tensor | np.ndarray:
        """Embeddings [passages, dim] of a list of passages, of a mapping of columns, or of a list of texts."""
        if isinstance(corpus, Mapping):
            texts, titles = list(corpus["text"]), list(corpus.get("title") or [])
        elif corpus and isinstance(corpus[0], str):
            texts, titles = list(corpus), []  # type: ignore[arg-type]
        else:
            texts = [passage["text"] for passage in corpus]  # type: ignore[index]
            titles = [passage.get("title") or "" for passage in corpus]  # type: ignore[union-attr]
        return _as_asked(self.embed_passages(texts, titles), options)


def _as_asked(vectors: np.ndarray, options: Mapping[str, Any]) -> torch.Tensor | np.ndarray:
    return torch.from_numpy(vectors) if options.get("convert_to_tensor") else vectors
