"""What is trained: an encoder and its objective, from token ids to a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from starbucks_retrieval.losses.base import Objective
from starbucks_retrieval.losses.batch import Batch, Loss
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.trainer.distributed import gather, gather_layers, world
from starbucks_retrieval.trainer.trainer import GradientCheckpointing

Taps = dict[int, Tensor]


@dataclass(frozen=True)
class Chunks:
    """How the texts of a step are cut for the encoder: padded tokens at once, and rows of queries and of passages.

    With cached, no activation outlives its chunk: the backward pass runs each chunk again, with the same dropout.
    """

    max_tokens: int | None = None
    query_rows: int | None = None
    passage_rows: int | None = None
    cached: bool = False


class TrainingModule(GradientCheckpointing):
    """Encodes a batch without computing padding, and applies an objective to its taps.

    Texts are sorted by length into chunks; their pooled taps go back to batch order, so the loss and its gradient are
    those of the padded batch. Passages of other processes are negatives too, unless `cross_device` is off.

    With an `anchor`, a frozen encoder (the backbone as it was), the total gains anchor_weight times the mean of
    1 - cos between the full size's embeddings of the two: what the smaller sizes learn then costs the full size little.
    """

    accepts_loss_kwargs = False  # tells transformers' Trainer that our loss is a mean over the batch

    def __init__(
        self,
        encoder: NestedEncoder,
        objective: Objective,
        chunks: Chunks | None = None,
        anchor: NestedEncoder | None = None,
        anchor_weight: float = 0.0,
        cross_device: bool = True,
    ) -> None:
        super().__init__()
        # In a tuple, because the anchor is no part of the model: not trained, moved, saved or wrapped with it.
        self._anchor = (anchor,)
        self.anchor_weight = anchor_weight
        self.encoder = encoder
        self.objective = objective
        self.chunks = chunks or Chunks()
        self.cross_device = cross_device
        self.lora_scale = 0.0
        self.step: tuple[int, ...] = (0,)  # what the sampling of sizes is seeded by, the same in every process

    @property
    def hf_model(self) -> Any:
        return self.encoder.backbone

    @property
    def config(self) -> Any:
        """The backbone's Hugging Face configuration, which transformers' Trainer looks for."""
        return self.encoder.backbone.config

    @property
    def _no_split_modules(self) -> Any:
        # The names of the backbone's layer classes, by which FSDP wraps when its configuration names none.
        return self.encoder.backbone._no_split_modules

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor,
        num_queries: Tensor,
        docids: Tensor,
        known: Tensor,
        labels: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> dict[str, Any]:
        """The loss, and its parts by name. Arguments as a Collator returns them."""
        drawn = self.objective.draw(np.random.default_rng(self.step))
        rows = [row.tolist() for row in ids.cpu().split(lengths.tolist())]
        queries, passages = self._encode(rows, int(num_queries), self.objective.layers(drawn), ids.device)
        anchored = self._drift(rows, queries, passages)
        with torch.autocast(ids.device.type, enabled=False):  # the encoder may run in bf16; scores and losses do not
            loss = self.objective(self._batch(queries, passages, docids, known, labels, teacher), drawn)
            if anchored is not None:
                total = loss.total + self.anchor_weight * anchored
                loss = Loss(total, {**loss.parts, "anchor": anchored.detach()})
        return {"loss": loss.total, "parts": loss.parts}

    def _batch(
        self,
        queries: Taps,
        passages: Taps,
        docids: Tensor,
        known: Tensor,
        labels: Tensor | None,
        teacher: Tensor | None,
    ) -> Batch:
        """The step's batch, with the rows of the other processes where the objective needs them."""
        count = len(known)
        group = len(docids) // count
        offset = 0
        if world() > 1 and self.cross_device:
            passages, docids = gather_layers(passages), gather(docids)
            if self.objective.options.by_query:
                offset = torch.distributed.get_rank() * count * group
            else:
                queries, known = gather_layers(queries), _gather_ragged(known)
                labels = None if labels is None else gather(labels)
                teacher = None if teacher is None else gather(teacher)
        batch = Batch(queries, passages, None, labels, teacher, group, offset)
        excluded = excluded_passages(docids, known, batch.targets)
        return Batch(queries, passages, excluded, labels, teacher, group, offset)

    # ------------------------------------------------------------------ texts

    def _encode(
        self, rows: list[list[int]], count: int, layers: tuple[tuple[int, ...], tuple[int, ...]], device: torch.device
    ) -> tuple[Taps, Taps]:
        """Taps of the first `count` rows at the first layers, and of the others at the second."""
        chunks = self.chunks
        apart = max(layers[0]) != max(layers[1]) or chunks.query_rows or chunks.passage_rows
        if apart:  # neither side runs layers, or waits for rows, that only the other one needs
            return (
                self.pooled_layers(self.encoder, rows[:count], layers[0], device, chunks.query_rows),
                self.pooled_layers(self.encoder, rows[count:], layers[1], device, chunks.passage_rows),
            )
        pooled_layers = self.pooled_layers(self.encoder, rows, tuple(sorted({*layers[0], *layers[1]})), device)
        return (
            {layer: pooled_layers[layer][:count] for layer in layers[0]},
            {layer: pooled_layers[layer][count:] for layer in layers[1]},
        )

    def pooled_layers(
        self,
        encoder: NestedEncoder,
        rows: list[list[int]],
        layers: tuple[int, ...],
        device: torch.device,
        max_rows: int | None = None,
    ) -> Taps:
        """Pooled taps {layer: [texts, hidden]} of token ids, in the order of the texts."""
        pad_id = self.encoder.tokenizer.pad_token_id or 0
        # Small chunks keep queries from being padded to the length of passages; a GPU needs more work at once.
        budget = self.chunks.max_tokens or (16384 if device.type != "cpu" else 1024)
        chunks = token_batches([len(row) for row in rows], budget, max_rows)
        found = [self._chunk(encoder, pad([rows[i] for i in chunk], pad_id, device), layers) for chunk in chunks]
        order = torch.from_numpy(np.argsort(np.concatenate(chunks))).to(device)  # undoes the sorting
        return {layer: _wide(torch.cat([pooled_layers[layer] for pooled_layers in found]))[order] for layer in layers}

    def _chunk(self, encoder: NestedEncoder, padded: dict[str, Tensor], layers: tuple[int, ...]) -> Taps:
        run = encoder.forward  # its parameters are all further in, and ZeRO 3's hooks cannot read taps
        if not (self.chunks.cached and torch.is_grad_enabled()):
            return run(**padded, layers=layers)
        # The gradient cache: keeping nothing but the taps and running the chunk again when their gradient is known is
        # checkpointing with the chunk as the unit. It restores autocast and the random state by itself.
        return checkpoint(run, **padded, layers=layers, use_reentrant=False)

    def _drift(self, rows: list[list[int]], queries: Taps, passages: Taps) -> Tensor | None:
        (anchor,) = self._anchor
        if anchor is None:
            return None
        full = self.objective.largest
        now = torch.cat([queries[full.layer], passages[full.layer]])
        with torch.no_grad():
            before = self.pooled_layers(anchor.to(now.device), rows, (full.layer,), now.device)[full.layer]
        return (1 - torch.cosine_similarity(now[:, : full.dim], before[:, : full.dim], dim=1)).mean()


def excluded_passages(docids: Tensor, known: Tensor, targets: Tensor) -> Tensor:
    """bool [queries, passages]: known positives of a query, in other places than its own positive's.

    docids [passages] and known [queries, most positives of a query] are hashes; 0 pads.
    """
    excluded = torch.stack([torch.isin(docids, row[row != 0]) for row in known])
    return excluded.scatter_(1, targets[:, None], False)


def _gather_ragged(known: Tensor) -> Tensor:
    """`gather` for tensors of different widths, padded with 0."""
    width = gather(torch.tensor([known.shape[1]], device=known.device)).max()
    return gather(nn.functional.pad(known, (0, int(width) - known.shape[1])))


def _wide(pooled: Tensor) -> Tensor:
    # Scores and losses of 16-bit taps are taken in float32.
    return pooled.float() if pooled.dtype in (torch.bfloat16, torch.float16) else pooled
