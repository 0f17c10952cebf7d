"""Encode distinct sentences once, at every requested size."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from starbucks_retrieval.devices import default_batch_tokens
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.backends.base import Backend
from starbucks_retrieval.models.backends.selection import open_backend
from starbucks_retrieval.models.info import model_info
from starbucks_retrieval.sentences import SentenceArguments
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

_CALIBRATION = 300  # texts that calibrate int8


class SentenceModel:
    """A model with the settings of the flags, and the back end that computes its embeddings.

    Args:
        arguments: The flags.

    Attributes:
        encoder: The loaded model.
        sizes: The sizes to measure.
        max_length: Tokens of a sentence.

    Raises:
        UserError: The model cannot be read or lacks a size, or a flag contradicts its stored settings.
    """

    def __init__(self, arguments: SentenceArguments) -> None:
        self.arguments = arguments
        self.encoder = NestedEncoder.from_pretrained(
            arguments.model_name_or_path, layers=arguments.deepest_layer, device=arguments.device
        )
        self.encoder.config = arguments.configured(self.encoder.config)
        self.sizes = arguments.selected_sizes(self.encoder)
        self.max_length = self.encoder.max_length(arguments.encode_is_query, arguments.max_length)
        self._backend: Backend | None = None

    @property
    def layer_sizes(self) -> Sizes:
        """One size per layer with its largest dim; smaller sizes are prefixes of these embeddings."""
        return Sizes([Size(n, max(s.dim for s in self.sizes if s.layer == n)) for n in self.sizes.layers])

    def embed(self, texts: Sequence[str], sizes: Sizes) -> dict[Size, np.ndarray]:
        """Return the embeddings of sentences at several sizes, from one pass.

        Args:
            texts: The sentences, without the model's prefix, which is added.
            sizes: The sizes to return.

        Returns:
            {size: float32 [texts, dim]}, in the order of the texts.

        Raises:
            UserError: An embedding is not finite; the message names the sentence.
        """
        config = self.encoder.config
        prefix = config.query_prefix if self.arguments.encode_is_query else config.passage_prefix
        rows = self.encoder.tokenize([(prefix + text).strip() for text in texts], self.max_length)
        if self._backend is None:
            first = rows[:_CALIBRATION] if self.arguments.dtype == "int8" else None
            self._backend = open_backend(self.arguments.backend, self.encoder, self.sizes, self.arguments.dtype, first)
            log.info("%d sizes, %s on %s", len(self.sizes), self._backend.name, self.encoder.device)
        budget = self.arguments.max_tokens_per_batch or default_batch_tokens(self.encoder.device.type)
        vectors = self._backend.embed(rows, sizes, max_tokens=budget, label="encoding")
        for size, embeddings in vectors.items():
            finite = np.isfinite(embeddings).all(axis=1)
            if not finite.all():
                text = texts[int(np.argmin(finite))]
                raise UserError(
                    f"the embedding of {_quoted(text)} at {size} is not finite, as are {np.sum(~finite) - 1} others",
                    "use --dtype fp32; if the error remains, the model's weights are damaged",
                )
        return vectors

    def describe(self) -> dict[str, Any]:
        """Return the settings that the results depend on, JSON-ready."""
        config = self.encoder.config
        is_query = self.arguments.encode_is_query
        return {
            "model": self.arguments.model_name_or_path,
            "fingerprint": self.encoder.fingerprint(max(self.sizes.layers)),
            **model_info(self.arguments.model_name_or_path).made_for(),
            "pooling": config.pooling,
            "normalize": config.normalize,
            "prefix": config.query_prefix if is_query else config.passage_prefix,
            "max_length": self.max_length,
            "runtime": self._backend.name if self._backend else None,
        }


def distinct(texts: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Return the distinct texts in order of appearance, and the position of each.

    Example:
        >>> distinct(["b", "a", "b"])
        (['b', 'a'], {'b': 0, 'a': 1})
    """
    positions: dict[str, int] = {}
    for text in texts:
        positions.setdefault(text, len(positions))
    return list(positions), positions


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
