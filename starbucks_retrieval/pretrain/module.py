"""The pre-training module: a masked language model at every size, and a decoder that reads each size's vector."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from starbucks_retrieval.losses.functional import span_contrast, weighted_cross_entropy
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.architectures import layout_of
from starbucks_retrieval.pretrain import PretrainOptions, heads, visited_sizes
from starbucks_retrieval.pretrain.decoders import Decoder, DecoderRows, new_decoder, sampled_labels
from starbucks_retrieval.pretrain.masks import IGNORED
from starbucks_retrieval.sizes import Sizes
from starbucks_retrieval.trainer.trainer import GradientCheckpointing


@dataclasses.dataclass(frozen=True)
class Term:
    """One mean of the loss.

    Attributes:
        name: In logs, such as `enc/2:32`.
        rows: [targets, width], vectors that are multiplied with the vocabulary.
        targets: int64 [targets], tokens to predict.
        weight: Of this mean in the loss.
    """

    name: str
    rows: Tensor
    targets: Tensor
    weight: float


def mean_cross_entropies(
    terms: Sequence[Term], vocabulary: nn.Linear, max_logits: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of the terms' mean cross-entropies, and each term's mean by name; 0 without targets.

    Args:
        terms: All terms are multiplied with the vocabulary together.
        vocabulary: The output layer of the language-modelling head.
        max_logits: Logits in memory at once; a default for the device if None.
    """
    rows, targets = torch.cat([term.rows for term in terms]), torch.cat([term.targets for term in terms])
    counts = [len(term.targets) for term in terms]
    shares = torch.tensor([term.weight / max(count, 1) for term, count in zip(terms, counts)], dtype=torch.float64)
    weights = shares.repeat_interleave(torch.tensor(counts)).to(rows.device)
    total, losses = weighted_cross_entropy(rows, targets, weights, vocabulary.weight, vocabulary.bias, max_logits)
    means = [part.sum() / max(len(part), 1) for part in losses.split(counts)]
    return total, {term.name: mean for term, mean in zip(terms, means)}


class PretrainingModule(GradientCheckpointing):
    """Computes L = mean over sizes of (L_enc + L_dec), or a variant of it, from a batch of masked texts.

    L_enc(n, d) predicts the masked tokens of the encoder's input from the states after layer n, truncated to d numbers,
    through the language-modelling head. L_dec(n, d) predicts tokens of the decoder's input; the decoder reads the first
    of these states in place of [CLS]. Each loss is a mean over all targets of the batch. Only targets are multiplied
    with the vocabulary, for all sizes and both losses at once.
    Sources: Starbucks (arXiv 2410.13230), eq. 6-9; RetroMAE (arXiv 2205.12035).

    Args:
        model: A Hugging Face masked language model.
        tokenizer: Saved beside it.
        encoder_config: The backbone's stored configuration.
        sizes: Sizes to train; by default the stored ones, or six in the paper's proportions.
        options: The loss.
        seed: Seeds a randomly initialised decoder.

    Raises:
        UserError: Sizes or options do not fit the backbone.
    """

    accepts_loss_kwargs = False  # tells transformers' Trainer that our loss is a mean over the batch

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        encoder_config: EncoderConfig,
        sizes: Sizes | None = None,
        options: PretrainOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.options = options = options or PretrainOptions()
        self.head = heads.head_of(model)
        self.layout = layout_of(model.config)
        depth, width = int(model.config.num_hidden_layers), int(model.config.hidden_size)
        model_sizes = sizes or encoder_config.sizes or Sizes.default(depth, width)
        self.sizes = visited_sizes(options, model_sizes, depth, width)
        self.encoder_config = stored_config(encoder_config, self.sizes, options)
        self.decoder: Decoder | None = new_decoder(self.backbone, self.layout, options, seed) if options.mae else None
        self.max_logits: int | None = None  # logits in memory at once; None: a default for the device
        self.step: tuple[int, ...] = (0,)  # seeds the sampling of the decoder's targets

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        sizes: Sizes | None = None,
        options: PretrainOptions | None = None,
        *,
        dropout: float | None = None,
        seed: int = 0,
        from_scratch: bool = False,
    ) -> PretrainingModule:
        """Load a backbone with its language-modelling head.

        Args:
            name_or_path: A Hugging Face or sentence-transformers folder, or a name on the hub.
            sizes: Sizes to train; by default the stored ones, or six in the paper's proportions.
            options: The loss.
            dropout: Replaces the model's dropout probabilities.
            seed: Seeds a head and a decoder that are new.
            from_scratch: Take random weights instead of the backbone's.

        Raises:
            UserError: As `load_masked_lm`, or the sizes or options do not fit the backbone.
        """
        loaded = heads.load_masked_lm(name_or_path, dropout=dropout, seed=seed, from_scratch=from_scratch)
        return cls(*loaded, sizes, options, seed)

    @property
    def backbone(self) -> Any:
        """The bare Hugging Face model under the head."""
        return getattr(self.model, self.model.base_model_prefix)

    @property
    def hf_model(self) -> Any:
        return self.model

    @property
    def config(self) -> Any:
        """The backbone's Hugging Face configuration, which transformers' Trainer looks for."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.device

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor,
        encoder_ids: Tensor,
        encoder_labels: Tensor,
        decoder_ids: Tensor | None = None,
        decoder_labels: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the loss of a batch of texts padded on the right.

        Args:
            ids: int64 [batch, tokens], the text.
            attention_mask: [batch, tokens], 0 for padding.
            encoder_ids: The text masked for the encoder.
            encoder_labels: Tokens to predict, -100 elsewhere.
            decoder_ids: The text masked for a basic decoder.
            decoder_labels: Tokens that the decoder predicts, -100 elsewhere.
            visible: bool [batch, tokens, tokens], True where a row may attend to a column, for enhanced decoding.

        Returns:
            `loss`, a scalar, and `parts`, the mean of each loss by name: `enc/2:32`, `dec/2:32`, `ctr`.
        """
        states = heads.hidden_states(self.backbone, self.layout, self.sizes.layers, encoder_ids, attention_mask)
        terms = self._encoder_terms(states, encoder_labels)
        if self.decoder is not None:
            enhanced = self.decoder.enhanced
            text, mask = (ids, visible) if enhanced else (decoder_ids, attention_mask.bool())
            assert text is not None and mask is not None and decoder_labels is not None
            terms += self._decoder_terms(states, text, mask, decoder_labels)
        loss, parts = mean_cross_entropies(terms, self.head.vocabulary, self.max_logits)
        if self.options.contrastive_weight:
            contrast = self._contrast(states[self.sizes.full.layer][:, 0, : self.sizes.full.dim])
            loss = loss + self.options.contrastive_weight * contrast
            parts["ctr"] = contrast.detach()
        return {"loss": loss, "parts": parts}

    def _encoder_terms(self, states: dict[int, Tensor], labels: Tensor) -> list[Term]:
        flat = labels.flatten()
        positions = (flat != IGNORED).nonzero().squeeze(1)
        targets = flat[positions]
        masked = {layer: state.flatten(0, 1).index_select(0, positions) for layer, state in states.items()}
        project = self.head.linear if self.options.projection == "linear" else self.head.transform
        return [
            Term(f"enc/{size}", project(masked[size.layer][:, : size.dim]), targets, self._weight)
            for size in self.sizes
        ]

    def _decoder_terms(self, states: dict[int, Tensor], ids: Tensor, mask: Tensor, labels: Tensor) -> list[Term]:
        """The decoder's losses; mask [batch, tokens], or [batch, tokens, tokens] for enhanced decoding."""
        tokens = heads.embedded(self.backbone, ids)
        if self.options.decoder_token_fraction < 1:
            rng = np.random.default_rng(self.step)
            by_size = sampled_labels(labels, len(self.sizes), self.options.decoder_token_fraction, rng)
        else:
            by_size = labels[None]
        rows = DecoderRows.labelled(by_size)
        count = self.options.size_batch or len(self.sizes)
        terms: list[Term] = []
        for start in range(0, len(self.sizes), count):
            sizes = self.sizes[start : start + count]
            first = torch.stack([self._bottleneck(states[size.layer][:, 0, : size.dim]) for size in sizes])
            group = rows.of_sizes(start, start + count)
            found = self._decode(first, tokens, mask, group)
            targets = group.targets[group.valid].reshape(len(group.index), group.count)
            terms += [
                Term(f"dec/{size}", vectors, tokens_of_size, self._weight)
                for size, vectors, tokens_of_size in zip(sizes, found, targets.expand(len(sizes), -1))
            ]
        return terms

    def _decode(self, first: Tensor, tokens: Tensor, mask: Tensor, rows: DecoderRows) -> Tensor:
        """The vectors that are multiplied with the vocabulary: [sizes, targets, E]."""

        def run(first: Tensor, tokens: Tensor) -> Tensor:
            assert self.decoder is not None
            queries = None
            if self.decoder.enhanced:
                queries = heads.position_embeddings(self.backbone, tokens.shape[1]).expand(len(tokens), -1, -1)
            return self.head.transform(self.decoder(self.backbone, first, tokens, mask, rows, queries))

        if self.recomputing and torch.is_grad_enabled():
            return checkpoint(run, first, tokens, use_reentrant=False)
        return run(first, tokens)

    def _bottleneck(self, state: Tensor) -> Tensor:
        """Project a truncated [CLS] state to the decoder's width: [batch, d] -> [batch, D]."""
        if self.options.projection == "identity":
            return state
        if self.options.projection == "transform":
            return heads.widened(self.backbone, self.head.transform(state))
        vector = heads.widened(self.backbone, self.head.linear(state))
        # Enhanced decoding adds it to position embeddings as a layer's input: it needs their scale.
        return functional.layer_norm(vector, vector.shape[-1:]) if self.options.decoder == "enhanced" else vector

    @property
    def _weight(self) -> float:
        """The weight of one size's loss."""
        halved = self.options.mae and self.options.loss_scale == "half"
        return (0.5 if halved else 1.0) / len(self.sizes)

    def _contrast(self, vectors: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):
            wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            return span_contrast(wide, self.options.contrastive_temperature, self.options.contrastive_normalize)


def stored_config(config: EncoderConfig, sizes: Sizes, options: PretrainOptions) -> EncoderConfig:
    """Return the configuration to save.

    Args:
        config: The configuration of the backbone.
        sizes: The sizes of the loss, which are stored if `options.sizes` is "all".
        options: If a decoder is trained (`mae`), the pooling becomes CLS.
    """
    if options.mae:
        config = dataclasses.replace(config, pooling="cls")
    return dataclasses.replace(config, sizes=sizes) if options.sizes == "all" else config
