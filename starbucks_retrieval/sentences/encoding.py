"""Distinct sentences, encoded once at every size that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.selection import open_backend
from starbucks_retrieval.sentences.arguments import SentenceArguments
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

_FIRST = 300  # texts by which int8 is calibrated


class SentenceModel:
    """A model with the flags' changes, and what computes its embeddings.

    Raises UserError for a model that cannot be read, sizes that it lacks, and flags that contradict it.
    """

    def __init__(self, arguments: SentenceArguments) -> None:
        self.arguments = arguments
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path, layers=arguments.deepest, device=arguments.device
        )
        self.encoder.config = arguments.configured(self.encoder.config)
        self.sizes = arguments.wanted(self.encoder.num_layers, self.encoder.hidden_size, self.encoder.sizes)
        self.max_length = self.encoder.max_length(arguments.encode_is_query, arguments.max_length)
        self._runtime: Backend | None = None

    @property
    def widest(self) -> Sizes:
        """Each layer's largest dim: their first numbers hold all smaller sizes, up to their length."""
        return Sizes([Size(n, max(s.dim for s in self.sizes if s.layer == n)) for n in self.sizes.layers])

    def embed(self, texts: Sequence[str], sizes: Sizes) -> dict[Size, np.ndarray]:
        """Embeddings {size: float32 [texts, dim]} of sentences, in their order, from one pass for all sizes.

        Raises UserError for embeddings that are not finite, naming the sentence.
        """
        config = self.encoder.config
        prefix = config.query_prefix if self.arguments.encode_is_query else config.passage_prefix
        rows = self.encoder.tokenize([(prefix + text).strip() for text in texts], self.max_length)
        if self._runtime is None:
            first = rows[:_FIRST] if self.arguments.dtype == "int8" else None
            self._runtime = open_backend(self.arguments.backend, self.encoder, self.sizes, self.arguments.dtype, first)
            log.info("%d sizes, %s on %s", len(self.sizes), self._runtime.name, self.encoder.device)
        budget = self.arguments.max_tokens_per_batch or (65536 if self.encoder.device.type == "cuda" else 4096)
        vectors = self._runtime.embed(rows, sizes, max_tokens=budget, label="encoding")
        for size, found in vectors.items():
            finite = np.isfinite(found).all(axis=1)
            if not finite.all():
                text = texts[int(np.argmin(finite))]
                raise UserError(
                    f"the embedding of {_shown(text)} at {size} is not finite, as are {np.sum(~finite) - 1} others",
                    "compute with --dtype fp32; if it stays, the model's weights are damaged",
                )
        return vectors

    def describe(self) -> dict[str, Any]:
        """What the figures depend on, JSON-ready."""
        config = self.encoder.config
        is_query = self.arguments.encode_is_query
        return {
            "model": self.arguments.model_name_or_path,
            "fingerprint": self.encoder.fingerprint(max(self.sizes.layers)),
            "pooling": config.pooling,
            "normalize": config.normalize,
            "prefix": config.query_prefix if is_query else config.passage_prefix,
            "max_length": self.max_length,
            "runtime": self._runtime.name if self._runtime else None,
        }


def distinct(texts: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Each text once, in order of appearance, and the position of each."""
    positions: dict[str, int] = {}
    for text in texts:
        positions.setdefault(text, len(positions))
    return list(positions), positions


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
