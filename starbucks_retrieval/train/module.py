"""What is trained: an encoder and its objective, from token ids to a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.objectives import Loss, SRLOptions, srl
from starbucks_retrieval.sizes import Sizes


class SRLModule(nn.Module):
    """Encodes a batch without computing padding, and applies SRL to its taps.

    Texts are sorted by length into chunks of at most `max_tokens` padded tokens; their pooled taps go back to batch
    order, so the loss and its gradient are those of the padded batch.

    With an `anchor`, a frozen encoder (the backbone as it was), the total gains anchor_weight times the mean of
    1 - cos between the full size's embeddings of the two: what the smaller sizes learn then costs the full size little.
    """

    accepts_loss_kwargs = False  # tells transformers' Trainer that our loss is a mean over the batch

    def __init__(
        self,
        encoder: NestedEncoder,
        sizes: Sizes,
        options: SRLOptions,
        max_tokens: int | None = None,
        anchor: NestedEncoder | None = None,
        anchor_weight: float = 0.0,
    ) -> None:
        super().__init__()
        # In a tuple, because the anchor is no part of the model: not trained, moved, saved or wrapped with it.
        self._anchor = (anchor,)
        self.anchor_weight = anchor_weight
        self.encoder = encoder
        self.sizes = sizes
        self.options = options
        self.max_tokens = max_tokens

    @property
    def config(self) -> Any:
        """The backbone's Hugging Face configuration, which transformers' Trainer looks for."""
        return self.encoder.backbone.config

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations."""
        # The re-entrant kind runs layers without a graph, and would cut the taps off from theirs.
        kwargs = {**(gradient_checkpointing_kwargs or {}), "use_reentrant": False}
        self.encoder.backbone.gradient_checkpointing_enable(kwargs)

    def forward(self, ids: Tensor, lengths: Tensor, num_queries: Tensor, excluded: Tensor) -> dict[str, Any]:
        """The loss, and its parts by name. Arguments as a Collator returns them."""
        taps = self.taps(self.encoder, ids, lengths, self.sizes.layers)
        count = int(num_queries)
        queries = {layer: tap[:count] for layer, tap in taps.items()}
        passages = {layer: tap[count:] for layer, tap in taps.items()}
        with torch.autocast(ids.device.type, enabled=False):  # the encoder may run in bf16; scores and losses do not
            loss = srl(queries, passages, self.sizes, self.options, excluded)
            (anchor,) = self._anchor
            if anchor is not None:
                drift = self._drift(anchor, taps[self.sizes.full.layer], ids, lengths)
                loss = Loss(loss.total + self.anchor_weight * drift, {**loss.parts, "anchor": drift.detach()})
        return {"loss": loss.total, "parts": loss.parts}

    def _drift(self, anchor: NestedEncoder, tap: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        full = self.sizes.full
        with torch.no_grad():
            before = self.taps(anchor.to(ids.device), ids, lengths, (full.layer,))[full.layer]
        return (1 - torch.cosine_similarity(tap[:, : full.dim], before[:, : full.dim], dim=1)).mean()

    def taps(self, encoder: NestedEncoder, ids: Tensor, lengths: Tensor, layers: tuple[int, ...]) -> dict[int, Tensor]:
        """Pooled taps {layer: [texts, hidden]} of flat token ids, in the order of the texts."""
        counts = lengths.tolist()
        rows = [row.tolist() for row in ids.cpu().split(counts)]
        pad_id = self.encoder.tokenizer.pad_token_id or 0
        # Small chunks keep queries from being padded to the length of passages; a GPU needs more work at once.
        chunks = token_batches(counts, self.max_tokens or (16384 if ids.is_cuda else 2048))
        found = [encoder(**pad([rows[i] for i in chunk], pad_id, ids.device), layers=layers) for chunk in chunks]
        order = torch.from_numpy(np.argsort(np.concatenate(chunks))).to(ids.device)  # undoes the sorting
        return {layer: torch.cat([taps[layer] for taps in found])[order] for layer in layers}
