"""A store of taps read at a smaller dim: cut, and only then normalised, as the encoder itself does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.search.funnel.passage_slice import Slice
from starbucks_retrieval.store import EmbeddingStore


class TruncatedView(Slice):
    """The embeddings at `dim` of a store that holds pooled taps, of no given length, at a wider size.

    They are in float32 whatever is stored, and of length 1 if `normalize`: from taps in float32 they are what encoding
    at that size gives. Nothing is copied. Raises UserError for a dim that the store does not hold.
    """

    def __init__(self, pooled_layers: EmbeddingStore, dim: int, normalize: bool) -> None:
        super().__init__(pooled_layers, dim)
        self.spec = dataclasses.replace(self.spec, normalize=normalize, store_dtype="float32")
        if normalize:
            kind = np.finfo(np.float32)
            self.largest_norm = 1 + 1e-5 + float(kind.eps) + math.sqrt(dim) * float(kind.smallest_subnormal)

    def _cut(self, wide: np.ndarray) -> np.ndarray:
        return truncated_views(wide, self.spec.size.dim, self.spec.normalize)


def truncated_views(pooled_layers: np.ndarray, dim: int, normalize: bool) -> np.ndarray:
    """Embeddings [rows, dim] in float32 of taps [rows, width]."""
    part = np.array(pooled_layers[:, :dim], dtype=np.float32)  # a copy: what is mapped may not be written to
    return embedding(torch.from_numpy(part), dim, normalize).numpy()
