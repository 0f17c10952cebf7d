"""A model folder or an open encoder at one size, for the evaluators of other projects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.evaluators import join_titles
from starbucks_retrieval.models.precision import Precision, autocast_dtype
from starbucks_retrieval.models.sized import SizedEncoder
from starbucks_retrieval.sizes import Size, parse_pair


class SizedModel(SizedEncoder):
    """What `NestedEncoder.at` returns, opened from a model folder or hub name.

    Args:
        model: A folder, a hub name, or an encoder that is open already.
        size: The size, such as `6:128`, or `2:64/4:64` for queries at 2:64 and passages at 4:64; by default the model's
            full size.
        device: `cpu`, `cuda`, `cuda:1` …; by default a GPU where there is one. Not for an open encoder.
        dtype: The precision of the computation.
        max_tokens: The largest rows x longest row of a batch.

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
        named = parse_pair(size) if size is not None else ()
        if isinstance(model, NestedEncoder):
            encoder = model
        else:
            layers = max((one.layer for one in named if one), default=None)
            encoder = NestedEncoder.from_pretrained(model, layers=layers, passage_layers=True, device=device)
        super().__init__(
            encoder, size or encoder.sizes.full, max_tokens=max_tokens, dtype=autocast_dtype(dtype, encoder.device)
        )

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of queries, float32 [texts, dim]."""
        return self.encode_query(texts)

    def embed_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> np.ndarray:
        """Return the embeddings of passages, float32 [texts, dim].

        Args:
            texts: The texts of the passages.
            titles: Their titles, empty where a passage has none. The model's own separator joins title and text.
        """
        return self.encode_document(join_titles(texts, titles, self.encoder.config.passage_field_separator))
