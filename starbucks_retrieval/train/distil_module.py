"""The module of training without labels: an encoder, those that teach it, and an objective over texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.losses.batch import Batch, Loss
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.projections import touch_unused
from starbucks_retrieval.train.teacher import Teacher
from starbucks_retrieval.train.teacher_map import TeacherMap
from starbucks_retrieval.trainer.distributed import gather, gather_layers, rank, world


class DistilModule(TrainingModule):
    """Encodes texts, with the encoder and with those that teach, and applies an objective without labels.

    Its `anchor` is the frozen start model, whose full embeddings the full size keeps. They are also the targets of the
    small sizes, unless there is another teacher.

    Args:
        arguments: Those of `TrainingModule`.
        teacher: Another teacher with the map of its embeddings, or None.
    """

    def __init__(self, *arguments: Any, teacher: tuple[Teacher, TeacherMap] | None = None) -> None:
        super().__init__(*arguments)
        self._teacher = teacher

    def forward(self, ids: Tensor, lengths: Tensor, **taught: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """Return the loss of a batch from a `TextCollator`.

        Args:
            ids: int64 [tokens], the token ids of all texts one after the other.
            lengths: int64 [texts], tokens of each text.
            taught: What `Teacher.inputs` returned, if there is another teacher.

        Returns:
            `loss`, a scalar tensor, and `parts`, the detached parts of it by name.
        """
        drawn = self.objective.draw(np.random.default_rng(self.step))
        rows = [row.tolist() for row in ids.cpu().split(lengths.tolist())]
        pooled = self.pooled_layers(self.encoder, rows, self.objective.layers(drawn)[0], ids.device)
        frozen = self._frozen(rows, ids.device)
        vectors = None if self._teacher is None else self._teacher[0].vectors(taught, self.pooled_layers)
        with torch.autocast(ids.device.type, enabled=False):
            loss = self.objective(self._text_batch(pooled, frozen, vectors), drawn)
            untouched = touch_unused(self.encoder.projections, pooled)
            if untouched is not None:
                loss = Loss(loss.total + untouched, loss.parts)
        return {"loss": loss.total, "parts": loss.parts}

    @torch.no_grad()
    def _frozen(self, rows: list[list[int]], device: torch.device) -> Tensor:
        (start,) = self._anchor
        assert start is not None
        return self.pooled_layers(start.to(device), rows, (start.num_layers,), device)[start.num_layers]

    def _text_batch(self, pooled: dict[int, Tensor], frozen: Tensor, vectors: Tensor | None) -> Batch:
        if world() == 1 or not self.cross_device:
            taught = self._taught(vectors, vectors)
            return Batch(pooled, pooled, frozen_queries=frozen, frozen_passages=frozen, **taught)
        everywhere, targets = gather_layers(pooled), gather(frozen)
        all_vectors = None if vectors is None else gather(vectors)
        if not self.objective.options.by_query:
            taught = self._taught(all_vectors, all_vectors)
            return Batch(everywhere, everywhere, frozen_queries=targets, frozen_passages=targets, **taught)
        offset, taught = rank() * len(frozen), self._taught(vectors, all_vectors)
        frozen_rows = {"frozen_queries": frozen, "frozen_passages": targets}
        return Batch(pooled, everywhere, group=1, offset=offset, **frozen_rows, **taught)

    def _taught(self, queries: Tensor | None, passages: Tensor | None) -> dict[str, Tensor]:
        """Return the other teacher's part of a batch: its scores, and its embeddings in the student's space."""
        if self._teacher is None or queries is None or passages is None:
            return {}
        mapped = self._teacher[1]
        return {"teacher_scores": mapped.scale * (queries @ passages.T), "teacher_targets": mapped.targets(passages)}
