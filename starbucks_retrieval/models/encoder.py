"""NestedEncoder: one backbone, pooled taps at any of its layers, embeddings at any size."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from starbucks_retrieval.cli import progress
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import umask_permissions
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.architectures import layers_of, layout_of, truncated_view
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.models.capture import CapturedLayers, Lock
from starbucks_retrieval.models.config import EncoderConfig
from starbucks_retrieval.models.fingerprint import layer_digests
from starbucks_retrieval.models.loading import load_backbone, quiet_transformers
from starbucks_retrieval.models.pooling import embedding, pool
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)


class NestedEncoder(nn.Module):
    """A Hugging Face backbone whose embedding can be taken at any size (layer, dim).

    `forward` returns pooled taps; a tap at layer n equals the pooled output of the model truncated to n layers, and no
    layer above the deepest asked one runs. `encode` turns texts into embeddings.
    """

    def __init__(self, backbone: nn.Module, tokenizer: Any, config: EncoderConfig, name: str = "") -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.config = config
        self.name = name
        self.layout = layout_of(backbone.config)
        self.num_layers = int(backbone.config.num_hidden_layers)
        self.hidden_size = int(backbone.config.hidden_size)
        if config.sizes is not None:
            config.sizes.check(self.num_layers, self.hidden_size)
        self._asked = CapturedLayers()
        self._tokenizer_lock = Lock()
        layers = layers_of(backbone, self.layout)
        layers[0].register_forward_pre_hook(self._before_layers, with_kwargs=True)
        for number, layer in enumerate(layers, 1):
            layer.register_forward_hook(partial(self._after_layer, number))

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        layers: int | None = None,
        passage_layers: bool = False,
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        dropout: float | None = None,
        trust_remote_code: bool = False,
    ) -> NestedEncoder:
        """Load a Hugging Face or sentence-transformers folder or hub name, in float32.

        With `layers`, only the weights up to that layer are read, and with `passage_layers` up to that of the passages
        which queries there are scored against; `dropout` replaces the model's own for
        training. Attention "unpadded" lays texts end to end where a GPU computes in half precision. `device`: a GPU
        where there is one, if None. Raises UserError when the path, the architecture or the weights do not fit, and for
        a device that is not there.
        """
        place = resolve_device(device)
        end_to_end = attn_implementation == unpadded.NAME
        if end_to_end and place.type == "cuda":
            unpadded.kernel()  # refuses a torch that lacks it, before the model is read
        backbone, tokenizer, config = load_backbone(
            str(name_or_path),
            layers,
            passage_layers=passage_layers,
            attn_implementation=None if end_to_end else attn_implementation,
            dropout=dropout,
            trust_remote_code=trust_remote_code,
        )
        if end_to_end:
            unpadded.switch(backbone)
        encoder = cls(backbone, tokenizer, config, name=str(name_or_path)).eval()
        return encoder.to(place)

    def compile_layers(self) -> None:
        """Compile each layer's forward for inputs of any length; hooks and pooling stay as they are."""
        for layer in layers_of(self.backbone, self.layout):
            layer.forward = torch.compile(layer.forward, dynamic=True)

    def save_pretrained(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write a plain Hugging Face folder (safetensors, tokenizer) plus starbucks.json; `weights` replace the own."""
        with quiet_transformers(), umask_permissions(folder):
            self.backbone.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        self.config.save(folder)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.backbone.parameters()).device

    @property
    def sizes(self) -> Sizes:
        """The model's own ladder; the full size alone for a backbone that has none."""
        return self.config.sizes or Sizes([Size(self.num_layers, self.hidden_size)])

    def fingerprint(self, layer: int) -> str:
        """A digest of tokenizer, weights and settings up to `layer`, the same for a model truncated there."""
        return self._digests[layer - 1]

    @cached_property
    def _digests(self) -> list[str]:
        return layer_digests(self.backbone, self.layout, self.tokenizer)

    # ------------------------------------------------------------------ taps

    def forward(self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        """Pooled taps {layer: [batch, hidden]} at the asked layers, from token ids and mask [batch, tokens].

        Layer 0, the embedding layer's output, can be asked beside others: a published training method visits it.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self._taps(inputs, partial(pool, mask=attention_mask, pooling=self.config.pooling), layers)

    def forward_unpadded(self, rows: Sequence[Sequence[int]], layers: Sequence[int]) -> dict[int, Tensor]:
        """The same taps of tokenised texts laid end to end; the encoder was loaded with attention "unpadded"."""
        start = unpadded.first_position(self.backbone.config)
        packing = unpadded.Packing.of(rows, start, self.device)
        inputs = {"input_ids": packing.ids, "position_ids": packing.positions}

        def pooled(hidden: Tensor) -> Tensor:
            return pool(packing.padded(hidden), packing.mask, self.config.pooling)

        with unpadded.using(packing):
            return self._taps(inputs, pooled, layers)

    def _taps(
        self, inputs: dict[str, Tensor], pooled: Callable[[Tensor], Tensor], layers: Sequence[int]
    ) -> dict[int, Tensor]:
        deepest = max(layers)
        if not (min(layers) >= 0 and 1 <= deepest <= self.num_layers):
            raise UserError(f"layers {sorted(layers)} asked of a model with {self.num_layers}", "layers start at 1")
        below = set(layers) - {deepest}
        model = self.backbone if deepest == self.num_layers else truncated_view(self.backbone, self.layout, deepest)
        finish = partial(self._finish, pooled)
        with self._asked.collect(below, finish) as states:
            output = model(**inputs)
        pooled_layers = {layer: finish(state) if _is_raw(state) else state for layer, state in states.items()}
        pooled_layers[deepest] = pooled(output.last_hidden_state)
        return {layer: pooled_layers[layer] for layer in sorted(set(layers))}

    def _before_layers(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        if 0 in self._asked.layers:
            hidden = inputs[0] if inputs else keywords["hidden_states"]
            self._asked.states[0] = hidden if torch.is_grad_enabled() else self._asked.finish(hidden)

    def _after_layer(self, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        asked = self._asked
        if number not in asked.layers:
            return
        hidden = output[0] if isinstance(output, tuple) else output
        # In training the state is kept as it is: an operation in here would be part of a checkpointed layer, and
        # would be missing when that layer is recomputed. Otherwise it is pooled at once, so that it can be freed.
        asked.states[number] = hidden if torch.is_grad_enabled() else asked.finish(hidden)

    def _finish(self, pooled: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        if self.layout.final_norm is not None:
            hidden = self.backbone.get_submodule(self.layout.final_norm)(hidden)
        return pooled(hidden)

    # ------------------------------------------------------------------ texts

    def max_length(self, is_query: bool, override: int | None = None) -> int:
        """Tokens a text may have, special ones included: `override`, else the stored length, else the model's limit."""
        stored = self.config.query_max_len if is_query else self.config.passage_max_len
        limit = token_limit(self)
        length = override or stored or limit
        if length > limit:
            raise UserError(f"a length of {length} tokens is beyond this model's {limit}", f"take at most {limit}")
        return length

    def tokenize(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Token ids of each text, truncated, unpadded, never empty."""
        with self._tokenizer_lock:  # a fast tokenizer keeps its truncation as shared state
            rows = self.tokenizer(
                list(texts), truncation=True, max_length=max_length, padding=False, return_attention_mask=False
            )["input_ids"]
        filler = [_first_not_none(self.tokenizer.eos_token_id, self.tokenizer.unk_token_id, 0)]
        return [row or filler for row in rows]

    @torch.no_grad()
    def embed(
        self,
        rows: Sequence[Sequence[int]],
        sizes: Sizes,
        *,
        max_tokens: int = 8192,
        dtype: torch.dtype | None = None,
        label: str | None = None,
    ) -> dict[Size, np.ndarray]:
        """Embeddings {size: float32 [rows, dim]} of tokenised texts, in their order, from one pass for all sizes.

        max_tokens bounds rows x longest of a batch. dtype bfloat16 or float16 computes under autocast. With a label,
        progress is shown under it.
        """
        sizes.check(self.num_layers, self.hidden_size)
        results = {size: np.empty((len(rows), size.dim), dtype=np.float32) for size in sizes}
        batches = token_batches([len(row) for row in rows], max_tokens)
        precision = torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()
        steps = progress(batches, len(batches), "batches", label) if label else iter(batches)
        pad_id = _first_not_none(self.tokenizer.pad_token_id, 0)
        # Torch's kernel knows half precision on GPUs alone; elsewhere padding between texts of one length costs little.
        end_to_end = unpadded.can_run(self.backbone) and self.device.type == "cuda" and dtype is not None
        # One autocast region for all batches: it casts each weight once and keeps the copy until it is left.
        with precision:
            for batch in steps:
                some = [rows[i] for i in batch]
                if end_to_end:
                    pooled_layers = self.forward_unpadded(some, sizes.layers)
                else:
                    pooled_layers = self(**pad(some, pad_id, self.device), layers=sizes.layers)
                for size in sizes:
                    results[size][batch] = (
                        embedding(pooled_layers[size.layer], size.dim, self.config.normalize).cpu().numpy()
                    )
        return results

    def encode(
        self,
        texts: Sequence[str],
        sizes: Sizes | Sequence[Size] | Size | str | None = None,
        *,
        is_query: bool = False,
        max_length: int | None = None,
        max_tokens: int = 8192,
        dtype: torch.dtype | None = None,
        label: str | None = None,
    ) -> dict[Size, np.ndarray]:
        """Embed texts at every asked size in one pass: {size: float32 [texts, dim]}.

        sizes: a Sizes, a Size, a list of them or a string such as "2:32,6:128"; the model's own ladder by default.
        The stored query or passage prefix is put in front of every text. Raises UserError for a size the model lacks.
        """
        if isinstance(texts, str):
            raise UserError("encode takes a list of texts, not one text", "write encode([text])")
        prefix = self.config.query_prefix if is_query else self.config.passage_prefix
        rows = (
            self.tokenize([(prefix + text).strip() for text in texts], self.max_length(is_query, max_length))
            if texts
            else []
        )
        asked = as_sizes(sizes, self.sizes)
        return self.embed(rows, asked, max_tokens=max_tokens, dtype=dtype, label=label)


def as_sizes(sizes: Sizes | Sequence[Size] | Size | str | None, model_sizes: Sizes) -> Sizes:
    """Whatever names sizes, as a ladder; None means `model_sizes` itself."""
    if sizes is None:
        return model_sizes
    if isinstance(sizes, str):
        return Sizes.parse(sizes, model_sizes)
    if isinstance(sizes, Size):
        return Sizes([sizes])
    return sizes if isinstance(sizes, Sizes) else Sizes(sorted(sizes))


def token_limit(encoder: NestedEncoder) -> int:
    """The longest input of an encoder, in tokens."""
    return limit_of(encoder.backbone.config, encoder.tokenizer)


def limit_of(config: Any, tokenizer: Any) -> int:
    """The longest input, in tokens, that a backbone has positions for and its tokenizer admits."""
    limit = int(getattr(config, "max_position_embeddings", None) or 8192)
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        limit -= config.pad_token_id + 1  # these number their positions from after the padding token
    return min(limit, tokenizer.model_max_length)


def _is_raw(state: Tensor) -> bool:
    return state.dim() == 3


def _first_not_none(*values: int | None) -> int:
    return next(value for value in values if value is not None)
