"""Distillation without labels: the map of another teacher's embeddings into the student's space, and the module that is trained."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.losses.batch import Batch
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.fit_report import is_held_out
from starbucks_retrieval.models.fitter import chunks
from starbucks_retrieval.models.fitting import Ridge, unit, with_ones
from starbucks_retrieval.models.texts import token_rows
from starbucks_retrieval.parsing import Finite, check_value, parse_json
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.examples import Text
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.teacher import Teacher, too_few_texts
from starbucks_retrieval.trainer import START
from starbucks_retrieval.trainer.distributed import gather, gather_layers, rank, world

log = logging.getLogger(__name__)

FILE = "teacher.safetensors"
_CONSTANT = 1e-9  # scores that differ less, relative to those of a text with itself, are equal up to rounding
_PAIRED = 3  # held-out texts whose scores have a spread


class TeacherMap(NamedTuple):
    """A map of a teacher's embeddings, and the scale of its scores.

    Attributes:
        weight: [hidden, width], float32.
        bias: [hidden].
        scale: The teacher's scores times this spread over pairs of texts as the student's full scores do, so that one
            temperature fits both.
        fitted: What training.json says: texts, held_out, ridge, held_out_cosine, score_scale.
    """

    weight: Tensor
    bias: Tensor
    scale: float
    fitted: dict[str, Any]

    def targets(self, vectors: Tensor) -> Tensor:
        """Return embeddings [texts, width] in the student's space, [texts, hidden]."""
        return vectors @ self.weight.to(vectors.device).T + self.bias.to(vectors.device)

    def save(self, path: Path) -> None:
        """Write a safetensors file, atomically."""
        from safetensors.torch import save

        content = save({"weight": self.weight, "bias": self.bias}, {"fitted": json.dumps(self.fitted)})
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            file.write(content)

    @classmethod
    def load(cls, path: Path) -> TeacherMap:
        """Read what `save` wrote. Raises UserError if the file is damaged."""
        from safetensors import SafetensorError, safe_open

        hint = "start the run again with --overwrite_output_dir"
        try:
            with safe_open(path, framework="pt") as file:
                fitted = parse_json(file.metadata()["fitted"], dict[str, Any], path, hint)
                scale = check_value(fitted.get("score_scale"), Finite, f"{path}: score_scale", hint)
                return cls(file.get_tensor("weight"), file.get_tensor("bias"), scale, fitted)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({type(error).__name__})", hint) from None


def map_path(output: Path) -> Path:
    """Return where a run keeps the map, so that a resumed run goes on with the same bits."""
    return output / START / FILE


def fit_map(teacher: Teacher, student: NestedEncoder, texts: Iterable[Text], lengths: tuple[int, int]) -> TeacherMap:
    """Fit the map that takes a teacher's embedding to the student's full one: ridge regression, as for the layers.

    All numbers of the teacher are inputs, so a wider one is not cut. Every tenth text is held out and chooses λ.

    Args:
        teacher: The teacher.
        student: The frozen start model, with its projections.
        texts: Texts of the training data.
        lengths: Tokens of a query and of a passage at most, for the student.

    Raises:
        UserError: There are fewer texts than numbers in an embedding, or the teacher's embeddings are constant or not
            finite.
    """
    name, width, full = teacher.source.name, teacher.source.width, Size(student.num_layers, student.hidden_size)
    gram, cross = np.zeros((width + 1, width + 1)), np.zeros((width + 1, full.dim))
    held: list[tuple[np.ndarray, np.ndarray]] = []
    seen = count = 0
    for chunk in chunks(texts):
        taught = teacher.embed(chunk)
        rows = token_rows(student, [(text.prefixed(student.config), text.is_query) for text in chunk], lengths)
        own = student.embed(rows, Sizes([full]))[full].astype(np.float64)
        if not np.isfinite(taught).all():
            raise UserError(f"the embeddings of the teacher {name} are not finite", "check its weights")
        out = np.array([is_held_out(seen + i) for i in range(len(chunk))])
        seen += len(chunk)
        count += int((~out).sum())
        inputs = with_ones(taught[~out])
        gram += inputs.T @ inputs
        cross += inputs.T @ own[~out]
        held.append((taught[out], own[out]))
    if count < width or sum(map(len, (pair[0] for pair in held))) < _PAIRED:
        raise too_few_texts(seen, width)
    taught, own = (np.concatenate(side) for side in zip(*held))
    spread = _spread(taught)
    if spread <= _CONSTANT * np.square(taught, dtype=np.float64).sum(axis=1).mean():
        raise UserError(
            f"the teacher {name} gives all these texts the same embedding", "check the texts and the teacher"
        )
    inputs = with_ones(taught)
    ridge, found = Ridge(gram, cross).best(inputs, own)
    cosine = float((unit(inputs @ found) * unit(own)).sum(axis=1).mean())
    fitted = {
        "texts": count,
        "held_out": len(own),
        "ridge": ridge,
        "held_out_cosine": round(cosine, 4),
        "score_scale": _spread(own) / spread,
    }
    log.info("teacher %s: mapped by %d texts, held-out cosine to the full embedding %.3f", name, count, cosine)
    weight, bias = (torch.from_numpy(np.ascontiguousarray(part)).float() for part in (found[:-1].T, found[-1]))
    return TeacherMap(weight, bias, fitted["score_scale"], fitted)


def record_of(teacher: Teacher, mapped: TeacherMap) -> dict[str, Any]:
    """Return what training.json says about a teacher: its name, fingerprint and width, and the fit of its map."""
    source = teacher.source
    return {"name": source.name, "fingerprint": teacher.fingerprint, "width": source.width, **mapped.fitted}


def _spread(vectors: np.ndarray) -> float:
    """Return the standard deviation of the scores of different texts."""
    wide = np.asarray(vectors, dtype=np.float64)
    return float((wide @ wide.T)[np.triu_indices(len(wide), 1)].std())


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
            return self._outputs(self.objective(self._text_batch(pooled, frozen, vectors), drawn), pooled)

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
