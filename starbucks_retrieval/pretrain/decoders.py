"""Decoders that reconstruct a text from one vector: basic and enhanced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.architectures import ArchitectureLayout, cut_config, layers_of, truncated_view
from starbucks_retrieval.pretrain.losses import IGNORED
from starbucks_retrieval.pretrain.options import PretrainOptions

_BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
FAMILIES = (*_BERT_LIKE, "distilbert")


@dataclass(frozen=True)
class AttentionParts:
    """Projections of a layer's attention, and `finish(context, residual)`, all that comes after it, row by row."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    heads: int
    dropout: float
    finish: Callable[[Tensor, Tensor], Tensor]


def parts_of(layer: Any, model_type: str) -> AttentionParts:
    """The parts of a layer of one of FAMILIES."""
    attention = layer.attention
    if model_type in _BERT_LIKE:
        inner = attention.self

        def finish(context: Tensor, residual: Tensor) -> Tensor:
            return layer.feed_forward_chunk(attention.output(context, residual))

        return AttentionParts(inner.query, inner.key, inner.value, inner.num_attention_heads, inner.dropout.p, finish)

    def finish_distilbert(context: Tensor, residual: Tensor) -> Tensor:
        attended = layer.sa_layer_norm(attention.out_lin(context) + residual)
        return layer.output_layer_norm(layer.ffn(attended) + attended)

    projections = attention.q_lin, attention.k_lin, attention.v_lin
    return AttentionParts(*projections, attention.n_heads, attention.dropout.p, finish_distilbert)


def two_stream_attention(
    parts: AttentionParts,
    queries: Tensor,
    first: Tensor,
    tokens: Tensor,
    visible: Tensor,
    shifted: bool,
    dropout: float = 0.0,
) -> Tensor:
    """What each row of each size reads from [first, tokens 1 …]: [sizes, batch, rows, hidden].

    queries [1 or sizes, batch, rows, hidden]; with `shifted`, `first` is added to them. first [sizes, batch, hidden] is
    column 0; tokens [batch, tokens, hidden] gives the other columns, whose keys and values all sizes share.
    visible bool [1 or sizes, batch, 1 or rows, tokens]: a row that may see nothing, as padding does, sees column 0.
    Source: RetroMAE (arXiv 2205.12035), eq. 4-6.
    """
    sizes, (batch, rows) = len(first), queries.shape[1:3]
    asked = parts.query(queries)
    if shifted:
        asked = asked + functional.linear(first, parts.query.weight)[:, :, None]
    asked = asked.expand(sizes, -1, -1, -1)
    keys, values = (
        torch.cat([part(first)[:, :, None], part(tokens[:, 1:]).expand(sizes, -1, -1, -1)], dim=2)
        for part in (parts.key, parts.value)
    )
    # Softmax over nothing is not a number, and would be one in the gradients of the other rows too.
    blind = ~visible.any(-1, keepdim=True)
    visible = torch.cat([visible[..., :1] | blind, visible[..., 1:]], dim=-1)
    mask = visible.expand(sizes, -1, rows, -1).flatten(0, 1)[:, None]
    asked, keys, values = (
        x.flatten(0, 1).unflatten(-1, (parts.heads, -1)).transpose(1, 2) for x in (asked, keys, values)
    )
    context = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, dropout_p=dropout)
    return context.transpose(1, 2).flatten(2).unflatten(0, (sizes, batch))


@dataclass(frozen=True)
class DecoderRows:
    """The places of a batch to be predicted and their tokens: index, valid, targets [1 or sizes, batch, rows].

    Texts with fewer places than others are padded to the right by places that are not valid; each size has `count` that
    are.
    """

    index: Tensor
    valid: Tensor
    targets: Tensor
    count: int

    @classmethod
    def labelled(cls, labels: Tensor) -> DecoderRows:
        """The places of labels [1 or sizes, batch, tokens] that are not ignored."""
        labelled = labels != IGNORED
        each = labelled.sum(-1)
        most, count = max(1, int(each.max())), int(each[0].sum())
        index = labelled.int().argsort(dim=-1, descending=True, stable=True)[..., :most]
        return cls(index, labelled.gather(-1, index), labels.gather(-1, index), count)

    def some(self, start: int, stop: int) -> DecoderRows:
        """Those of some sizes."""
        if len(self.index) == 1:
            return self
        return DecoderRows(self.index[start:stop], self.valid[start:stop], self.targets[start:stop], self.count)

    def of(self, values: Tensor) -> Tensor:
        """What values [batch, tokens, …] holds at those places: [1 or sizes, batch, rows, …]."""
        batch, tokens = values.shape[:2]
        flat = self.index + torch.arange(batch, device=values.device)[:, None] * tokens
        return values.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, flat.shape)


def sampled_labels(labels: Tensor, sizes: int, fraction: float, rng: np.random.Generator) -> Tensor:
    """labels [batch, tokens] for every size, each with its own random part of the targets: [sizes, batch, tokens].

    All sizes keep equally many, and every target is kept equally often: means over them have the full mean's expectation.
    """
    flat = labels.flatten()
    targets = (flat != IGNORED).nonzero().squeeze(1)
    kept = min(len(targets), max(1, round(len(targets) * fraction)))
    sampled = torch.full((sizes, len(flat)), IGNORED, dtype=labels.dtype, device=labels.device)
    for row in sampled:
        chosen = targets[torch.from_numpy(rng.permutation(len(targets))[:kept]).to(labels.device)]
        row[chosen] = flat[chosen]
    return sampled.unflatten(1, labels.shape)


class Decoder(nn.Module):
    """Layers of the backbone's own kind that read a text whose first position holds the encoder's vector.

    Embeddings, final norm and language-modelling head are the backbone's. Basic: the masked text attends to itself.
    Enhanced: queries are positions, keys and values the whole text, and each row has its own visible part of it.
    Sources: Starbucks (arXiv 2410.13230), eq. 7-8; RetroMAE (arXiv 2205.12035), eq. 1-7.
    """

    def __init__(
        self, layers: nn.ModuleList, layout: ArchitectureLayout, model_type: str, enhanced: bool = False
    ) -> None:
        super().__init__()
        if enhanced and model_type not in FAMILIES:
            raise UserError(
                f"enhanced decoding needs learned positions and a layer of BERT's kind, which {model_type!r} lacks",
                f"take decoder basic, or one of {', '.join(FAMILIES)}",
            )
        self.layers = layers
        self.layout = layout
        self.model_type = model_type
        self.enhanced = enhanced

    def forward(
        self,
        backbone: Any,
        first: Tensor,
        tokens: Tensor,
        mask: Tensor,
        rows: DecoderRows,
        queries: Tensor | None = None,
    ) -> Tensor:
        """States of the rows to be predicted: [sizes, targets, hidden].

        first [sizes, batch, hidden]; tokens [batch, tokens, hidden] the embedded text; mask bool [batch, tokens] what is
        no padding, or [batch, tokens, tokens] with the columns that each row may see; queries [batch, tokens, hidden]
        the positions of enhanced decoding. Position 0, where `first` is, is never one to be predicted.
        """
        valid = rows.valid.expand(len(first), -1, -1)
        shape = len(first), rows.count, tokens.shape[-1]
        if len(self.layers) > 1 or self.model_type not in FAMILIES:
            index = rows.index.expand(len(first), -1, -1)
            return self._whole(backbone, first, tokens, mask).take_along_dim(index[..., None], 2)[valid].reshape(shape)
        # One layer needs no more of its queries and of what follows attention than the rows that are read.
        parts = parts_of(self.layers[0], self.model_type)
        asking = rows.of(tokens if queries is None else queries)
        visible = rows.of(mask) if self.enhanced else mask[None, :, None]
        dropout = parts.dropout if self.training else 0.0
        context = two_stream_attention(parts, asking, first, tokens, visible, self.enhanced, dropout)
        residual = asking + first[:, :, None] if self.enhanced else asking.expand(len(first), -1, -1, -1)
        return parts.finish(context[valid], residual[valid]).reshape(shape)

    def _whole(self, backbone: Any, first: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """All states [sizes, batch, tokens, hidden], by the backbone's own forward over the decoder's layers."""
        sizes = len(first)
        rest = tokens[:, 1:].expand(sizes, -1, -1, -1)
        given = torch.cat([first[:, :, None], rest], dim=2).flatten(0, 1)
        view = truncated_view(backbone, self.layout, len(self.layers))
        stack = layers_of(view, self.layout)
        for i, layer in enumerate(self.layers):
            stack[i] = layer
        view.embeddings = _Given(given)
        if hasattr(view, "embeddings_project"):
            del view.embeddings_project  # of the view alone: what is given has its width already
        states = view(inputs_embeds=given, attention_mask=mask.long().repeat(sizes, 1)).last_hidden_state
        return states.unflatten(0, (sizes, -1))


class _Given(nn.Module):
    """In the place of an embedding layer: vectors that are embedded already."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        return self.vectors


def new_decoder(backbone: Any, layout: ArchitectureLayout, options: PretrainOptions, seed: int = 0) -> Decoder:
    """A decoder for a backbone: copies of its first layers, or layers initialised as its architecture does, from `seed`.

    Raises UserError for more layers than can be copied, and for enhanced decoding with an architecture that lacks it.
    """
    config, count = backbone.config, options.decoder_layers
    enhanced = options.decoder == "enhanced"
    if count > config.num_hidden_layers:
        raise UserError(
            f"a decoder of {count} layers for a backbone of {config.num_hidden_layers}", "take fewer decoder layers"
        )
    layers = layers_of(backbone, layout)
    if options.decoder_init == "random":
        layers = layers_of(_random_backbone(config, count, seed), layout)
    chosen = copy.deepcopy(nn.ModuleList(list(layers)[:count]))
    return Decoder(chosen.to(backbone.dtype).to(backbone.device), layout, config.model_type, enhanced)


def _random_backbone(config: Any, layers: int, seed: int) -> Any:
    from transformers import AutoModel

    small = copy.deepcopy(config)
    cut_config(small, layers)
    # Its embeddings are not used: no need for a whole vocabulary of them.
    small.vocab_size, small.pad_token_id = 2, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModel.from_config(small, attn_implementation=config._attn_implementation)
