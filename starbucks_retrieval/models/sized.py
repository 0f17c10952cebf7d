"""SizedEncoder: an encoder at one size, with the methods of a SentenceTransformer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.models.input_texts import checked_texts
from starbucks_retrieval.models.prompts import with_prompt
from starbucks_retrieval.models.sized_options import (
    DOCUMENT,
    QUERY,
    ModelCardData,
    as_matrix,
    beir_texts,
    check_output,
    find_prompt,
    mteb_inputs,
    mteb_model_meta,
    quantize,
)
from starbucks_retrieval.models.token_encoder import TokenEncoder
from starbucks_retrieval.sizes import Size, Sizes, parse_pair

Texts: TypeAlias = str | Sequence[str]
Vectors: TypeAlias = Any  # an array, a tensor or a list of tensors, as the caller asks


class SizedEncoder:
    """An encoder at one size, with the methods of a SentenceTransformer.

    The evaluators of sentence-transformers, mteb and beir take it as a model. Texts are prepared as by
    `NestedEncoder.encode`: queries and passages have their own prefix and length, and a text that is neither counts as
    a passage. Vectors are cut first and normalised then. Weights are shared with the encoder.

    Args:
        encoder: The encoder.
        size: A Size, a string such as "4:128", or "2:64/4:64" for queries at 2:64 and passages at 4:64. Without the
            second part, passages have the size that the model scores such queries against.
        max_tokens: The largest rows x longest row of a batch.
        dtype: torch.bfloat16 or torch.float16 computes under autocast; None in float32.

    Attributes:
        encoder: The encoder.
        size: The size of queries.
        passage_size: The size of passages.
        size_name: Both as text: "4:128", or "2:64/4:64".
        prompts: The texts put before queries and passages, by the names "query" and "document".
        default_prompt_name: The prompt of `encode`.
        similarity_fn_name: "cosine" for models that normalise, otherwise "dot".

    Raises:
        UserError: The model lacks a size, or its layers are not comparable.

    Example:
        ```python
        model = encoder.at("4:128")
        hits = util.semantic_search(model.encode_query(["do hens fly?"]), model.encode_document(["hens lay eggs"]))
        ```
    """

    def __init__(
        self, encoder: TokenEncoder, size: Size | str, *, max_tokens: int = 8192, dtype: torch.dtype | None = None
    ) -> None:
        self.encoder = encoder
        self.prompts = {QUERY: encoder.config.query_prefix, DOCUMENT: encoder.config.passage_prefix}
        self.default_prompt_name = DOCUMENT if self.prompts[DOCUMENT] else None
        self.similarity_fn_name = "cosine" if encoder.config.normalize else "dot"
        self.model_card_data = ModelCardData()
        self._max_tokens, self._dtype = max_tokens, dtype
        self._max_length: int | None = None
        self._use(size)

    def _use(self, size: Size | str) -> None:
        encoder = self.encoder
        self.size, named = parse_pair(size, encoder.sizes)
        encoder.check(Sizes([self.size]))
        usual = encoder.config.passage_size(self.size)
        self.passage_size = named or usual
        encoder.check(Sizes([self.passage_size]))
        if self.passage_size not in (self.size, usual) and encoder.projections is None:
            raise UserError(
                f"queries at {self.size} and passages at {named} of this model are not comparable",
                "run starbucks fit, which maps all layers into one space, or train with --passage_layers",
            )
        self.size_name = str(self.size) if self.passage_size == usual else f"{self.size}/{self.passage_size}"

    def at(self, size: Size | str) -> Self:
        """Return the same at another size. Raises UserError if the model lacks it."""
        other = copy.copy(self)
        vars(other).pop("mteb_model_meta", None)  # made for the other size
        other._use(size)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.encoder.name!r}, {self.size_name!r})"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.device

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return self.encoder.tokenizer

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a passage, special ones included; a value that is set applies to queries too."""
        return self._max_length or self.encoder.max_length(False)

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        if length < 3:
            raise UserError(f"max_seq_length {length} is too short for any text", "take at least 3 tokens")
        self._max_length = self.encoder.max_length(False, length)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the dim of the embeddings."""
        return self.size.dim

    get_embedding_dimension = get_sentence_embedding_dimension  # its name since sentence-transformers 6

    def tokenize(self, texts: Sequence[str], prompt: str | None = None) -> dict[str, Tensor]:
        """Return the padded `input_ids` and `attention_mask` of texts, [texts, longest] each.

        Args:
            texts: The texts, which are cut to `max_seq_length` tokens.
            prompt: Put before each text; by default nothing.

        Raises:
            UserError: An item is not a text.
        """
        return pad(self._rows(checked_texts(texts), prompt or "", self.max_seq_length), self.encoder.pad_id)

    preprocess = tokenize  # its name since sentence-transformers 6

    def encode(
        self,
        sentences: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        task: str | None = None,
        inputs: Any = None,
        **batches_of_mteb: Any,
    ) -> Vectors:
        """Embed texts, as passages unless `prompt_name` is "query".

        Args:
            sentences: One text or several.
            prompt_name: "query" or "document"; by default "document".
            prompt: Put before each text, in place of the model's own prompt.
            batch_size: The most texts of a batch. By default only `max_tokens` limits batches, as in
                `NestedEncoder.encode`.
            show_progress_bar: Show progress.
            output_value: Only "sentence_embedding".
            precision: "float32", or another precision of sentence-transformers' `quantize_embeddings`.
            convert_to_numpy: Return an array; if False, a list of tensors.
            convert_to_tensor: Return one tensor on the model's device.
            device: Move the model there first.
            normalize_embeddings: Bring vectors to length 1, also of a model that does not normalise.
            truncate_dim: Return the vectors of a smaller dim of the layer.
            task: "query" or "document": as what texts are embedded, whatever the prompt.
            inputs: The name of `sentences` in sentence-transformers 6.
            batches_of_mteb: `task_metadata` and `prompt_type`, with which mteb passes batches instead of texts.

        Returns:
            float32 [texts, dim], or [dim] for one text.

        Raises:
            UserError: An item is not a text, the model has no such prompt, or an option is not supported.

        Example:
            ```python
            encoder.at("4:128").encode(["hens lay eggs", "moths fly at night"]).shape  # (2, 128)
            ```
        """
        texts: Any = inputs if sentences is None else sentences
        if batches_of_mteb:
            texts, task = mteb_inputs(texts, self.encoder.config.passage_field_separator, batches_of_mteb)
        if task not in (None, QUERY, DOCUMENT):
            raise UserError(f"no task {task!r}", f"take {QUERY!r} or {DOCUMENT!r}")
        is_query = (task or prompt_name) == QUERY
        prefix = find_prompt(self.prompts, prompt_name or (QUERY if is_query else DOCUMENT), prompt)
        check_output(output_value, precision, batch_size)
        if device is not None:
            self._move(device)
        size = self.size if is_query else self.passage_size
        if truncate_dim is not None:
            if not isinstance(truncate_dim, int) or not 1 <= truncate_dim <= size.dim:
                raise UserError(
                    f"truncate_dim={truncate_dim!r} does not fit {size}", f"take a dim from 1 to {size.dim}"
                )
            size = Size(size.layer, truncate_dim)
        several = checked_texts([texts] if isinstance(texts, str) else texts)
        vectors = self._embed(several, prefix, is_query, size, batch_size, "texts" if show_progress_bar else None)
        if normalize_embeddings and not self.encoder.config.normalize:
            vectors = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=-1).numpy()
        if precision not in (None, "float32"):
            vectors = quantize(vectors, precision)
        found: Any = vectors
        if convert_to_tensor:
            found = torch.from_numpy(vectors).to(self.device)
        elif not convert_to_numpy:
            found = list(torch.from_numpy(vectors))
        return found[0] if isinstance(texts, str) else found

    def encode_query(
        self, sentences: Texts | None = None, prompt_name: str | None = None, *arguments: Any, **options: Any
    ) -> Vectors:
        """Embed queries, with the model's prefix and length for queries. The arguments are those of `encode`."""
        # Not self.encode: that of MtebModel takes batches.
        return SizedEncoder.encode(self, sentences, prompt_name, *arguments, task=QUERY, **options)

    def encode_document(
        self, sentences: Texts | None = None, prompt_name: str | None = None, *arguments: Any, **options: Any
    ) -> Vectors:
        """Embed passages, with the model's prefix and length for passages. The arguments are those of `encode`."""
        return SizedEncoder.encode(self, sentences, prompt_name, *arguments, task=DOCUMENT, **options)

    def encode_queries(self, queries: Sequence[str], batch_size: int | None = None, **options: Any) -> Vectors:
        """Embed queries for beir. The arguments are those of `encode`."""
        return self.encode_query(queries, batch_size=batch_size, **options)

    def encode_corpus(
        self,
        corpus: Sequence[Mapping[str, str]] | Mapping[str, Sequence[str]] | Sequence[str],
        batch_size: int | None = None,
        **options: Any,
    ) -> Vectors:
        """Embed passages for beir: mappings with `title` and `text`, a mapping of columns, or texts, as `encode` does."""
        texts = beir_texts(corpus, self.encoder.config.passage_field_separator)
        return self.encode_document(texts, batch_size=batch_size, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosines of all pairs [first, second]; dot products for a model that does not normalise.

        Args:
            embeddings1: An array, a tensor or a list of rows, [first, dim] or [dim].
            embeddings2: [second, dim] or [dim].
        """
        first, second = self._matrix(embeddings1), self._matrix(embeddings2)
        return first @ second.to(first.device).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the scores [pairs] of corresponding rows of two [pairs, dim], as `similarity` does."""
        first, second = self._matrix(embeddings1), self._matrix(embeddings2)
        return (first * second.to(first.device)).sum(dim=1)

    @cached_property
    def mteb_model_meta(self) -> Any:
        """The model's metadata in mteb's form. Raises UserError if mteb is not installed."""
        return mteb_model_meta(self.encoder, self.size, self.passage_size, self.size_name)

    def _embed(
        self, texts: list[str], prefix: str, is_query: bool, size: Size, batch_size: int | None, label: str | None
    ) -> np.ndarray:
        return self._embed_sizes(texts, prefix, is_query, Sizes([size]), batch_size, label)[size]

    def _embed_sizes(
        self, texts: list[str], prefix: str, is_query: bool, sizes: Sizes, batch_size: int | None, label: str | None
    ) -> dict[Size, np.ndarray]:
        rows = self._rows(texts, prefix, self._length(is_query))
        limits: dict[str, Any] = {"max_tokens": self._max_tokens, "max_rows": batch_size, "dtype": self._dtype}
        return with_prompt(self.encoder, prefix).embed(rows, sizes, label=label, **limits)

    def _length(self, is_query: bool) -> int:
        return self._max_length or self.encoder.max_length(is_query)

    def _rows(self, texts: list[str], prefix: str, length: int) -> list[list[int]]:
        return self.encoder.tokenize([(prefix + text).strip() for text in texts], length) if texts else []

    def _move(self, device: str | torch.device) -> None:
        if isinstance(device, list | tuple):
            what = "an encoder at one size computes on one device, not on several"
            raise UserError(what, "name one, or use starbucks encode --num_processes")
        self.encoder.to(resolve_device(device))

    def _matrix(self, embeddings: Any) -> Tensor:
        return as_matrix(embeddings, normalize=self.similarity_fn_name == "cosine")
