"""TokenEncoder: from token ids to embeddings at any size, in batches of texts of similar length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from starbucks_retrieval.cli import progress
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.architectures import token_limit
from starbucks_retrieval.models.batching import batch_tokens, pad, token_batches
from starbucks_retrieval.models.by_size import Embeddings
from starbucks_retrieval.models.captured import CopyableLock
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.fingerprint import layer_digests, projected_digest
from starbucks_retrieval.models.head import Head
from starbucks_retrieval.models.input_texts import refuse_surrogates
from starbucks_retrieval.models.packed_encoding import BATCH_TOKENS, pack_bert, share_batches
from starbucks_retrieval.models.pooling import PooledBackbone, embedding
from starbucks_retrieval.models.precision import packed_weights
from starbucks_retrieval.models.projections import Projections
from starbucks_retrieval.models.prompts import Prompts
from starbucks_retrieval.sizes import Size, Sizes

_LOOKED_UP = 16384  # texts whose tokens are looked up at once


class TokenEncoder(PooledBackbone):
    """A backbone with its tokenizer, which embeds rows of token ids at several sizes in one pass.

    The arguments are those of `NestedEncoder`.

    Attributes:
        stored: The weights of the backbone as they are stored, where loading rounded them; otherwise None.

    Raises:
        UserError: The architecture is not supported, or the backbone lacks a size of the configuration.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Any,
        config: EncoderConfig,
        name: str = "",
        projections: Projections | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__(backbone, config, projections, head)
        self.tokenizer = tokenizer
        self.name = name
        if config.sizes is not None:
            self.check(config.sizes)
        self._tokenizer_lock = CopyableLock()
        self._prompts = Prompts(tokenizer, self._tokenizer_lock)
        self.stored: Mapping[str, Tensor] | None = None

    @property
    def sizes(self) -> Sizes:
        """The sizes that the model stores; the full size alone for a backbone that stores none."""
        return self.config.sizes or Sizes([Size(self.num_layers, self.hidden_size)])

    @property
    def token_limit(self) -> int:
        """The longest input that the model and its tokenizer admit, in tokens."""
        return token_limit(self.backbone.config, self.tokenizer)

    @property
    def pad_id(self) -> int:
        """The token that fills rows up, which is masked; 0 if the model has no vector for that of the tokenizer."""
        found = _first_not_none(self.tokenizer.pad_token_id, 0)
        return found if found < self._vocabulary else 0

    def fingerprint(self, layer: int) -> str:
        """Return a digest of the tokenizer, weights, settings, head and projections up to a layer.

        A model truncated to that layer has the same digest. Stores record it; search compares it.
        """
        digest = self.backbone_fingerprint(layer)
        return digest if self.projections is None else projected_digest(digest, self.projections.digest(layer))

    def backbone_fingerprint(self, layer: int) -> str:
        """Return the fingerprint of a layer without its projection; that of a layer from 0."""
        return self._backbone_digests[layer]

    @cached_property
    def _backbone_digests(self) -> list[str]:
        return layer_digests(self.backbone, self.layout, self.tokenizer, self.stored, self.head)

    def store_fields(self, size: Size, is_query: bool) -> dict[str, Any]:
        """Return the fields of a `StoreSpec` that the model decides, for queries or for passages at one size.

        Args:
            size: The size of the store.
            is_query: The store holds queries; otherwise passages.

        Raises:
            UserError: The stored length is beyond the model's limit.
        """
        config = self.config
        # Where a model uses several layers, the deeper store records the fingerprints of the layers below.
        deepest = size.layer if config.passage_layers else 0
        return {
            "pooling": config.pooling,
            "normalize": config.normalize,
            "prefix": config.query_prefix if is_query else config.passage_prefix,
            "separator": "" if is_query else config.passage_field_separator,
            "max_length": self.max_length(is_query),
            "fingerprint": self.fingerprint(size.layer),
            "model_name": self.name,
            "space": config.passage_size(size).layer if is_query and config.passage_layers else None,
            "lineage": tuple(self.fingerprint(layer) for layer in range(1, deepest)),
            "shared_space": self.projections.space if self.projections is not None else "",
        }

    def check(self, sizes: Sizes) -> Sizes:
        """Return sizes unchanged. Raises UserError if the model lacks one of them."""
        return self.config.check_sizes(sizes, self.num_layers, self.hidden_size)

    def max_length(self, is_query: bool, override: int | None = None) -> int:
        """Return the most tokens of a text, special ones included.

        Args:
            is_query: Of queries; otherwise of passages.
            override: Takes precedence over the stored length, which takes precedence over the model's limit.

        Raises:
            UserError: The length is beyond the model's limit.
        """
        stored = self.config.query_max_len if is_query else self.config.passage_max_len
        limit = self.token_limit
        length = override or stored or limit
        if not isinstance(length, int | np.integer) or length < 1:
            raise UserError(f"max_length is {length!r}", f"give a whole number of tokens, {limit} at most")
        if length > limit:
            raise UserError(f"a length of {length} tokens is beyond this model's {limit}", f"take at most {limit}")
        return length

    def tokenize(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return the token ids of each text, without padding, never empty.

        Args:
            texts: The texts, with their prefix.
            max_length: The most tokens of a text, special ones included; longer texts are truncated.

        Raises:
            UserError: A text is not valid Unicode, or the tokenizer has tokens that the model lacks.
        """
        try:
            with self._tokenizer_lock:  # a fast tokenizer keeps its truncation as shared state
                rows = self.tokenizer(
                    list(texts), truncation=True, max_length=max_length, padding=False, return_attention_mask=False
                )["input_ids"]
        except TypeError:
            refuse_surrogates(texts)
            raise
        filler = [_first_not_none(self.tokenizer.eos_token_id, self.tokenizer.unk_token_id, 0)]
        rows = [row or filler for row in rows]
        if self._may_exceed_vocabulary and rows and (highest := max(map(max, rows))) >= self._vocabulary:
            raise UserError(
                f"{self.name}: its tokenizer gives token {highest}, the model has vectors for {self._vocabulary} tokens",
                "the tokenizer belongs to another model; copy the whole model folder again",
            )
        return rows

    @property
    def _vocabulary(self) -> int:
        return self.backbone.get_input_embeddings().num_embeddings

    @cached_property
    def _may_exceed_vocabulary(self) -> bool:
        """Whether the tokenizer has tokens that the model lacks: in its vocabulary, or as special tokens around a text."""
        vocabulary = self.tokenizer.get_vocab() if hasattr(self.tokenizer, "get_vocab") else {}
        ids = [*vocabulary.values(), *self.tokenizer(["a"])["input_ids"][0]]
        return max(ids, default=0) >= self._vocabulary

    def pooling_mask(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mask of the tokens that count in pooling: all but padding, and but prompts where they do not.

        Args:
            input_ids: Token ids [batch, tokens].
            attention_mask: 1 for tokens and 0 for padding, [batch, tokens].

        Raises:
            UserError: Prompts do not count, and the tokens of a prefix depend on the text after it.
        """
        return self._prompts.mask(self.config, input_ids, attention_mask)

    @torch.no_grad()
    def embed(
        self,
        rows: Sequence[Sequence[int]],
        sizes: Sizes,
        *,
        max_tokens: int = 8192,
        max_rows: int | None = None,
        dtype: torch.dtype | None = None,
        label: str | None = None,
    ) -> Embeddings:
        """Compute the embeddings of tokenised texts at several sizes in one pass.

        Args:
            rows: The token ids of each text, as `tokenize` returns them.
            sizes: The sizes to return.
            max_tokens: The largest rows x longest row of a batch.
            max_rows: The most rows of a batch.
            dtype: torch.bfloat16 or torch.float16 computes under autocast; None in float32.
            label: Shows progress under this name; None shows none.

        Returns:
            {size: float32 [rows, dim]}, rows in their order. A size may be text: `vectors["2:32"]`.

        Raises:
            UserError: The model lacks a size, or an option has a wrong value.
        """
        self.check(sizes)
        _check_options(max_tokens, max_rows, dtype)
        results = {size: np.empty((len(rows), size.dim), dtype=np.float32) for size in sizes}
        deeper = [size for size in sizes if size.layer or self.projections is None]
        results.update(self.look_up(rows, [size for size in sizes if size not in deeper]))
        if not deeper:
            return Embeddings(results, self.sizes)
        layers, lengths = Sizes(deeper).layers, [len(row) for row in rows]
        dtype = dtype or self.autocast_dtype
        needed = layers if self.projections is None else sorted(self.projections.inputs(layers))
        packed = pack_bert(self.backbone, needed, dtype, sum(lengths), self.config.pooling == "cls")
        budget = batch_tokens(max_tokens, self.device.type) if packed is None else min(max_tokens, BATCH_TOKENS)
        batches = token_batches(lengths, budget, max_rows, padded=packed is None)
        steps = progress(batches, len(batches), "batches", label) if label else batches

        def keep(batch: np.ndarray, pooled: dict[int, Tensor]) -> None:
            for size in deeper:
                vectors = embedding(pooled[size.layer], size.dim, self.config.normalize)
                results[size][batch] = vectors.cpu().numpy()

        if packed is not None:
            forward = partial(self.forward_packed, layers=layers, packed=packed)
            share_batches(steps, len(batches), lambda batch: keep(batch, forward([rows[i] for i in batch])))
            return Embeddings(results, self.sizes)
        # The kernel supports half precision on GPUs only; elsewhere, padding of texts of similar length costs little.
        end_to_end = unpadded.is_enabled(self.backbone) and self.device.type == "cuda" and dtype is not None
        precision = torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()
        # One autocast region for all batches: it casts each weight once and keeps the copy until it is left.
        with precision, packed_weights(self, dtype, sum(lengths)), self.shortened():
            for batch in steps:
                batch_rows = [rows[i] for i in batch]
                if end_to_end:
                    keep(batch, self.forward_unpadded(batch_rows, layers))
                else:
                    keep(batch, self(**pad(batch_rows, self.pad_id, self.device), layers=layers))
        return Embeddings(results, self.sizes)

    @torch.no_grad()
    def look_up(self, rows: Sequence[Sequence[int]], sizes: Iterable[Size]) -> dict[Size, np.ndarray]:
        """Compute embeddings at layer 0 from the token table, in float32, many texts at once and without padding.

        Args:
            rows: The token ids of each text.
            sizes: Sizes of layer 0.

        Returns:
            {size: float32 [rows, dim]}; empty for no sizes.

        Raises:
            UserError: The model has no token table.
        """
        sizes = list(sizes)
        if not sizes:
            return {}
        if self.projections is None:
            raise UserError("layer 0 needs the token table of a fitted model", "run starbucks fit")
        results = {size: np.empty((len(rows), size.dim), dtype=np.float32) for size in sizes}
        widest = max(size.dim for size in sizes)
        for start in range(0, len(rows), _LOOKED_UP):
            block = slice(start, start + _LOOKED_UP)
            pooled = self.projections.token_table.embed_rows(rows[block], widest)
            for size in sizes:
                results[size][block] = embedding(pooled, size.dim, self.config.normalize).cpu().numpy()
        return results


def _check_options(max_tokens: Any, max_rows: Any, dtype: Any) -> None:
    for name, value in (("max_tokens", max_tokens), ("batch_size", max_rows)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise UserError(f"{name} is {value!r}", "leave it out, or give a whole number of 1 or more")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise UserError(f"dtype is {dtype!r}, not a type of torch", "take torch.bfloat16, torch.float16 or None")


def _first_not_none(*values: int | None) -> int:
    return next(value for value in values if value is not None)
