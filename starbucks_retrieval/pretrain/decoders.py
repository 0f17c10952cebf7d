"""Decoders that reconstruct a text from one vector, by basic or enhanced decoding."""

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
from starbucks_retrieval.models.attention import attend
from starbucks_retrieval.pretrain import PretrainOptions
from starbucks_retrieval.pretrain.masks import IGNORED

_BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
FAMILIES = (*_BERT_LIKE, "distilbert")


@dataclass(frozen=True)
class AttentionLayer:
    """The projections of a layer's attention, and the rest of the layer.

    Attributes:
        query, key, value: Projections.
        heads: Number of attention heads.
        dropout: Of the attention weights.
        finish: Maps (context, residual) to the layer's output, row by row.
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    heads: int
    dropout: float
    finish: Callable[[Tensor, Tensor], Tensor]


def attention_layer(layer: Any, model_type: str) -> AttentionLayer:
    """Return the parts of a transformer layer.

    Args:
        layer: The Hugging Face module.
        model_type: Its architecture, one of `FAMILIES`.
    """
    attention = layer.attention
    if model_type in _BERT_LIKE:
        inner = attention.self

        def finish(context: Tensor, residual: Tensor) -> Tensor:
            return layer.feed_forward_chunk(attention.output(context, residual))

        return AttentionLayer(inner.query, inner.key, inner.value, inner.num_attention_heads, inner.dropout.p, finish)

    def finish_distilbert(context: Tensor, residual: Tensor) -> Tensor:
        attended = layer.sa_layer_norm(attention.out_lin(context) + residual)
        return layer.output_layer_norm(layer.ffn(attended) + attended)

    projections = attention.q_lin, attention.k_lin, attention.v_lin
    return AttentionLayer(*projections, attention.n_heads, attention.dropout.p, finish_distilbert)


def two_stream_attention(
    parts: AttentionLayer,
    queries: Tensor,
    first: Tensor,
    tokens: Tensor,
    visible: Tensor,
    shifted: bool,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from the query stream to [first, tokens 1 …], for all sizes at once.

    Source: RetroMAE (arXiv 2205.12035), eq. 4-6.

    Args:
        parts: The layer's projections.
        queries: [1 or sizes, batch, rows, hidden].
        first: [sizes, batch, hidden], the vector in column 0.
        tokens: [batch, tokens, hidden], the other columns, whose keys and values all sizes share.
        visible: bool [1 or sizes, batch, 1 or rows, tokens]; a row that sees nothing, such as padding, sees column 0.
        shifted: Whether `first` is added to the queries, as in enhanced decoding.
        dropout: Of the attention weights.

    Returns:
        The context of every row, [sizes, batch, rows, hidden].
    """
    sizes, (batch, rows) = len(first), queries.shape[1:3]
    projected = parts.query(queries)
    if shifted:
        projected = projected + functional.linear(first, parts.query.weight)[:, :, None]
    projected = projected.expand(sizes, -1, -1, -1)
    keys, values = (
        torch.cat([part(first)[:, :, None], part(tokens[:, 1:]).expand(sizes, -1, -1, -1)], dim=2)
        for part in (parts.key, parts.value)
    )
    # A softmax over no column is NaN, also in the gradients of the other rows.
    blind = ~visible.any(-1, keepdim=True)
    visible = torch.cat([visible[..., :1] | blind, visible[..., 1:]], dim=-1)
    hidden = ~visible.expand(sizes, -1, rows, -1).flatten(0, 1)[:, None]
    bias = torch.zeros(hidden.shape, dtype=queries.dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
    projected, keys, values = (
        x.flatten(0, 1).unflatten(-1, (parts.heads, -1)).transpose(1, 2) for x in (projected, keys, values)
    )
    context = attend(projected, keys, values, bias, dropout)
    return context.transpose(1, 2).flatten(2).unflatten(0, (sizes, batch))


@dataclass(frozen=True)
class DecoderRows:
    """The positions that the decoder predicts and their tokens; texts with fewer positions are padded.

    Attributes:
        index: int64 [1 or sizes, batch, rows], positions in the text.
        valid: bool, same shape, False for padding.
        targets: int64, same shape, tokens to predict.
        count: Valid positions of each size.
    """

    index: Tensor
    valid: Tensor
    targets: Tensor
    count: int

    @classmethod
    def labelled(cls, labels: Tensor) -> DecoderRows:
        """Return the positions of labels [1 or sizes, batch, tokens] that are not -100."""
        labelled = labels != IGNORED
        each = labelled.sum(-1)
        most, count = max(1, int(each.max())), int(each[0].sum())
        index = labelled.int().argsort(dim=-1, descending=True, stable=True)[..., :most]
        return cls(index, labelled.gather(-1, index), labels.gather(-1, index), count)

    def of_sizes(self, start: int, stop: int) -> DecoderRows:
        """Return the positions of the sizes from `start` to `stop`; all sizes may share the same ones."""
        if len(self.index) == 1:
            return self
        return DecoderRows(self.index[start:stop], self.valid[start:stop], self.targets[start:stop], self.count)

    def gather(self, values: Tensor) -> Tensor:
        """Return the values [batch, tokens, …] at these positions: [1 or sizes, batch, rows, …]."""
        batch, tokens = values.shape[:2]
        flat = self.index + torch.arange(batch, device=values.device)[:, None] * tokens
        return values.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, flat.shape)


def sampled_labels(labels: Tensor, sizes: int, fraction: float, rng: np.random.Generator) -> Tensor:
    """Return the labels of every size, each with its own random part of the targets.

    Every size keeps the same number of targets, drawn uniformly, so the expected mean is that over all targets.

    Args:
        labels: [batch, tokens], -100 where nothing is predicted.
        sizes: Number of sizes.
        fraction: Part of the targets that each size keeps.
        rng: Generator of the draws.

    Returns:
        [sizes, batch, tokens].
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
    """Transformer layers of the backbone's kind that read a text whose first position holds the encoder's vector.

    Embeddings, final norm and language-modelling head are the backbone's. Basic: the masked text attends to itself.
    Enhanced: queries are positions, keys and values are the whole text, and each row sees its own part of the text.
    Sources: Starbucks (arXiv 2410.13230), eq. 7-8; RetroMAE (arXiv 2205.12035), eq. 1-7.

    Args:
        layers: The decoder's layers.
        layout: Attribute paths of the architecture.
        model_type: The architecture's name in Hugging Face configurations.
        enhanced: Whether decoding is enhanced.

    Raises:
        UserError: The architecture does not support enhanced decoding.
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
        """Return the states of the rows to predict: [sizes, targets, hidden].

        Args:
            backbone: Hugging Face model whose forward runs decoders of several layers.
            first: [sizes, batch, hidden], the vectors in position 0, which is never predicted.
            tokens: [batch, tokens, hidden], the embedded text.
            mask: bool [batch, tokens], False for padding; or [batch, tokens, tokens], the columns that each row sees.
            rows: The positions to predict.
            queries: [batch, tokens, hidden], position embeddings, for enhanced decoding.
        """
        valid = rows.valid.expand(len(first), -1, -1)
        shape = len(first), rows.count, tokens.shape[-1]
        if len(self.layers) > 1 or self.model_type not in FAMILIES:
            index = rows.index.expand(len(first), -1, -1)
            return self._whole(backbone, first, tokens, mask).take_along_dim(index[..., None], 2)[valid].reshape(shape)
        # With one layer, queries and everything after attention are needed only for the rows to predict.
        parts = attention_layer(self.layers[0], self.model_type)
        query_rows = rows.gather(tokens if queries is None else queries)
        visible = rows.gather(mask) if self.enhanced else mask[None, :, None]
        dropout = parts.dropout if self.training else 0.0
        context = two_stream_attention(parts, query_rows, first, tokens, visible, self.enhanced, dropout)
        residual = query_rows + first[:, :, None] if self.enhanced else query_rows.expand(len(first), -1, -1, -1)
        return parts.finish(context[valid], residual[valid]).reshape(shape)

    def _whole(self, backbone: Any, first: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """All states [sizes, batch, tokens, hidden], by the backbone's forward over the decoder's layers."""
        sizes = len(first)
        rest = tokens[:, 1:].expand(sizes, -1, -1, -1)
        embedded = torch.cat([first[:, :, None], rest], dim=2).flatten(0, 1)
        view = truncated_view(backbone, self.layout, len(self.layers))
        stack = layers_of(view, self.layout)
        for i, layer in enumerate(self.layers):
            stack[i] = layer
        view.embeddings = _FixedEmbeddings(embedded)
        if hasattr(view, "embeddings_project"):
            del view.embeddings_project  # of the view only: the vectors are projected already
        states = view(inputs_embeds=embedded, attention_mask=mask.long().repeat(sizes, 1)).last_hidden_state
        return states.unflatten(0, (sizes, -1))


class _FixedEmbeddings(nn.Module):
    """Stands for an embedding layer and returns fixed vectors."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        return self.vectors


def new_decoder(backbone: Any, layout: ArchitectureLayout, options: PretrainOptions, seed: int = 0) -> Decoder:
    """Return a decoder of copies of the backbone's first layers, or of randomly initialised ones.

    Args:
        backbone: A bare Hugging Face model.
        layout: Attribute paths of its architecture.
        options: The loss.
        seed: Seeds random layers.

    Raises:
        UserError: The backbone has fewer layers, or its architecture does not support enhanced decoding.
    """
    config, count = backbone.config, options.decoder_layers
    enhanced = options.decoder == "enhanced"
    if count > config.num_hidden_layers:
        problem = f"a decoder of {count} layers for a backbone of {config.num_hidden_layers}"
        raise UserError(problem, "take fewer decoder layers")
    layers = layers_of(backbone, layout)
    if options.decoder_init == "random":
        layers = layers_of(_random_backbone(config, count, seed), layout)
    chosen = copy.deepcopy(nn.ModuleList(list(layers)[:count]))
    return Decoder(chosen.to(backbone.dtype).to(backbone.device), layout, config.model_type, enhanced)


def _random_backbone(config: Any, layers: int, seed: int) -> Any:
    from transformers import AutoModel

    small = copy.deepcopy(config)
    cut_config(small, layers)
    # Its embeddings are not used, so a vocabulary of two is enough.
    small.vocab_size, small.pad_token_id = 2, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModel.from_config(small, attn_implementation=config._attn_implementation)
