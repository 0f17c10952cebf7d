"""The module that is trained: an encoder and an objective, from token ids to a loss."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from starbucks_retrieval.losses.base import Objective
from starbucks_retrieval.losses.batch import Batch, Loss, outside_group
from starbucks_retrieval.models import NestedEncoder, unpadded
from starbucks_retrieval.models.activations import keep_fewer_activations
from starbucks_retrieval.models.batching import pad, token_batches
from starbucks_retrieval.trainer.distributed import gather, gather_layers, world
from starbucks_retrieval.trainer.trainer import GradientCheckpointing

if TYPE_CHECKING:
    from starbucks_retrieval.train.teacher import Teacher

PooledLayers = dict[int, Tensor]


@dataclass(frozen=True)
class Chunks:
    """The chunks in which the encoder processes the texts of a step.

    Attributes:
        max_tokens: Tokens per chunk, with padding where there is any; None means 16384 on a GPU. On a CPU it means 4096
            where activations are kept and there is no padding, else 1024.
        query_rows: Queries per chunk at most.
        passage_rows: Passages per chunk at most.
        cached: Keep no activations of a chunk; the backward pass runs it again with the same dropout (GradCache,
            arXiv 2101.06983).
    """

    max_tokens: int | None = None
    query_rows: int | None = None
    passage_rows: int | None = None
    cached: bool = False

    def budget(self, device_type: str, padded: bool, recomputing: bool = False) -> int:
        """Return the tokens of a chunk on a device ("cpu" or "cuda"), whose texts are padded or layers recomputed or not."""
        # In small chunks, queries are not padded to the length of passages. A GPU needs larger ones.
        default = 16384 if device_type != "cpu" else 1024 if padded or self.cached or recomputing else 4096
        return self.max_tokens or default


class TrainingModule(GradientCheckpointing):
    """Encodes a batch with little padding, and applies an objective to the pooled outputs of its layers.

    Texts are sorted by length into chunks, and their pooled outputs are put back into batch order. The loss and its
    gradient equal those of the padded batch.

    Args:
        encoder: The encoder to train.
        objective: The loss over all sizes.
        chunks: The chunks in which texts are encoded.
        anchor: A frozen copy of the backbone. The loss gains `anchor_weight` times the mean of 1 - cos between the full
            size's embeddings of both, so that training for smaller sizes changes the full size little.
        anchor_weight: The weight of that term.
        cross_device: Use the passages of other processes as negatives.
        guide: An encoder whose scores decide which negatives are left out, or None.
    """

    accepts_loss_kwargs = False  # for transformers' Trainer: the loss is a mean over the batch

    def __init__(
        self,
        encoder: NestedEncoder,
        objective: Objective,
        chunks: Chunks | None = None,
        anchor: NestedEncoder | None = None,
        anchor_weight: float = 0.0,
        cross_device: bool = True,
        guide: Teacher | None = None,
    ) -> None:
        super().__init__()
        # In a tuple, so that the anchor is not trained, moved, saved or wrapped with the module.
        self._anchor = (anchor,)
        self.anchor_weight = anchor_weight
        self.encoder = encoder
        self.objective = objective
        self.chunks = chunks or Chunks()
        self.cross_device = cross_device
        self._guide = guide
        self.lora_scale = 0.0
        self.step: tuple[int, ...] = (0,)  # seeds the sampling of sizes; the same in every process

    @property
    def hf_model(self) -> Any:
        return self.encoder.backbone

    @property
    def config(self) -> Any:
        """The backbone's Hugging Face configuration, for transformers' Trainer."""
        return self.encoder.backbone.config

    @property
    def _no_split_modules(self) -> Any:
        # FSDP wraps the backbone's layer classes if its configuration names none.
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
        in_batch: Tensor | None = None,
        **guided: Tensor,
    ) -> dict[str, Any]:
        """Return the loss of a batch from a `Collator`.

        Args:
            ids: int64 [tokens], the token ids of all texts one after the other: queries, then passages group by group.
            lengths: int64 [queries + passages], tokens of each text.
            num_queries: int64 [], the number of queries.
            docids: int64 [passages], hashed ids.
            known: int64 [queries, most positives of one], hashed ids of each query's positives, padded with 0.
            labels: [queries], the similarity of scored pairs.
            teacher: [queries, group], a teacher's scores.
            in_batch: Bool [queries], whether passages of other queries are negatives, if data sets differ in it.
            guided: What `Teacher.inputs` of the guide returned for all texts, if there is a guide.

        Returns:
            `loss`, a scalar tensor, and `parts`, the detached parts of it by name.
        """
        drawn = self.objective.draw(np.random.default_rng(self.step))
        rows = [row.tolist() for row in ids.cpu().split(lengths.tolist())]
        queries, passages = self._encode(rows, int(num_queries), self.objective.layers(drawn), ids.device)
        anchor_loss = self._anchor_loss(rows, queries, passages)
        guide = None if self._guide is None else self._guide.vectors(guided, self.pooled_layers)
        # The encoder may run in bf16; scores and losses are float32.
        with torch.autocast(ids.device.type, enabled=False):
            batch = self._batch(queries, passages, docids, known, labels, teacher, in_batch, guide)
            loss = self.objective(batch, drawn)
            if anchor_loss is not None:
                total = loss.total + self.anchor_weight * anchor_loss
                loss = Loss(total, {**loss.parts, "anchor": anchor_loss.detach()})
            return self._outputs(loss, {*queries, *passages})

    def _outputs(self, loss: Loss, used: Iterable[int]) -> dict[str, Any]:
        """Return what `forward` returns for a loss, with a zero gradient for the maps that the step does not use.

        Processes must find a gradient for every weight in every step, and with one process the trajectory must be the
        same.
        """
        total, projections = loss.total, self.encoder.projections
        if projections is not None:
            taken = {id(weight) for part in projections.parts(used) for weight in part.parameters()}
            left = [w for w in projections.parameters() if id(w) not in taken and not hasattr(w, "ds_id")]
            if left:
                total = total + torch.stack([weight.sum() for weight in left]).sum() * 0
        return {"loss": total, "parts": loss.parts}

    def _batch(
        self,
        queries: PooledLayers,
        passages: PooledLayers,
        docids: Tensor,
        known: Tensor,
        labels: Tensor | None,
        teacher: Tensor | None,
        in_batch: Tensor | None,
        guide: Tensor | None,
    ) -> Batch:
        """Return the batch of a step, with the rows of other processes if the objective needs them."""
        count = len(known)
        group = len(docids) // count
        offset, options = 0, self.objective.options
        guided = None if guide is None else (guide[:count], guide[count:], guide[:count])
        others = None
        if world() > 1 and self.cross_device:
            passages, docids = gather_layers(passages), gather(docids)
            if guided is not None:
                guided = (guided[0], gather(guided[1]), gather(guided[2]))
            if options.by_query:
                offset = torch.distributed.get_rank() * count * group
                if options.query_negatives or options.passage_negatives:
                    others = gather_layers(queries)
            else:
                queries, known = gather_layers(queries), _gather_ragged(known)
                labels, teacher, in_batch = (
                    None if rows is None else gather(rows) for rows in (labels, teacher, in_batch)
                )
                guided = None if guided is None else (guided[2], *guided[1:])
        batch = Batch(queries, passages, None, labels, teacher, group, offset, other_queries=others, guide=guided)
        excluded = excluded_passages(docids, known, batch.targets)
        if in_batch is not None:
            excluded |= outside_group(batch) & ~in_batch[:, None]
        return dataclasses.replace(batch, excluded=excluded)

    def _encode(
        self, rows: list[list[int]], count: int, layers: tuple[tuple[int, ...], tuple[int, ...]], device: torch.device
    ) -> tuple[PooledLayers, PooledLayers]:
        """Return pooled outputs of the first `count` rows at `layers[0]`, and of the others at `layers[1]`."""
        chunks = self.chunks
        separately = max(layers[0]) != max(layers[1]) or chunks.query_rows or chunks.passage_rows
        if separately:  # queries and passages need different layers or chunks
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
    ) -> PooledLayers:
        """Encode texts in chunks.

        Args:
            encoder: The encoder, or the anchor.
            rows: Token ids of each text.
            layers: The layers whose pooled outputs are returned.
            device: The device of the encoder.
            max_rows: Texts per chunk at most.

        Returns:
            {layer: [texts, hidden]}, in the order of the texts.
        """
        padded = not (unpadded.is_enabled(encoder.backbone) and device.type == "cpu")
        budget = self.chunks.budget(device.type, padded, self.recomputing)
        chunks = token_batches([len(row) for row in rows], budget, max_rows, padded)
        outputs = [self._chunk(encoder, [rows[i] for i in chunk], layers, padded) for chunk in chunks]
        order = torch.from_numpy(np.argsort(np.concatenate(chunks))).to(device)  # undoes the sorting
        return {layer: _to_float32(torch.cat([output[layer] for output in outputs]))[order] for layer in layers}

    def _chunk(
        self, encoder: NestedEncoder, rows: list[list[int]], layers: tuple[int, ...], padded: bool
    ) -> PooledLayers:
        # Not __call__: ZeRO 3's hooks cannot read its outputs, and the parameters belong to inner modules.
        run: Any = encoder.forward if padded else encoder.forward_unpadded
        inputs = pad(rows, encoder.tokenizer.pad_token_id or 0, encoder.device) if padded else {"rows": rows}
        if not (self.chunks.cached and torch.is_grad_enabled()):
            with contextlib.nullcontext() if padded else keep_fewer_activations(encoder.backbone):
                return run(**inputs, layers=layers)
        # GradCache is gradient checkpointing of a whole chunk: only its pooled outputs are kept, and it runs again when
        # their gradient is known. `checkpoint` restores autocast and the random state.
        return checkpoint(run, **inputs, layers=layers, use_reentrant=False)

    def _anchor_loss(self, rows: list[list[int]], queries: PooledLayers, passages: PooledLayers) -> Tensor | None:
        (anchor,) = self._anchor
        if anchor is None:
            return None
        full = self.objective.largest
        now = torch.cat([queries[full.layer], passages[full.layer]])
        with torch.no_grad():
            before = self.pooled_layers(anchor.to(now.device), rows, (full.layer,), now.device)[full.layer]
        return (1 - torch.cosine_similarity(now[:, : full.dim], before[:, : full.dim], dim=1)).mean()


def excluded_passages(docids: Tensor, known: Tensor, targets: Tensor) -> Tensor:
    """Mark the passages that must not be negatives of a query because they are known positives of it.

    Args:
        docids: Hashed ids of the passages, [passages].
        known: Hashed ids of each query's positives, padded with 0, [queries, most positives of one].
        targets: The column of each query's positive, which is not marked, [queries].

    Returns:
        bool [queries, passages].

    Example:
        >>> docids, known = torch.tensor([7, 8, 7]), torch.tensor([[7, 0], [8, 9]])
        >>> excluded_passages(docids, known, torch.tensor([0, 1])).int().tolist()
        [[0, 0, 1], [0, 0, 0]]
    """
    excluded = torch.stack([torch.isin(docids, row[row != 0]) for row in known])
    return excluded.scatter_(1, targets[:, None], False)


def _gather_ragged(known: Tensor) -> Tensor:
    """Apply `gather` to tensors of different widths, padded with 0."""
    width = gather(torch.tensor([known.shape[1]], device=known.device)).max()
    return gather(nn.functional.pad(known, (0, int(width) - known.shape[1])))


def _to_float32(pooled: Tensor) -> Tensor:
    # Scores and losses are computed in float32.
    return pooled.float() if pooled.dtype in (torch.bfloat16, torch.float16) else pooled
