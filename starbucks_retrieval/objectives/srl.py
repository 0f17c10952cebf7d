"""Starbucks Representation Learning: InfoNCE at every size of a ladder, each size aligned with the full one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.objectives.alignment import coordinate_kl, score_kl
from starbucks_retrieval.objectives.contrastive import info_nce, positive_columns
from starbucks_retrieval.objectives.scores import ladder_scores
from starbucks_retrieval.sizes import Size, Sizes


class Loss(NamedTuple):
    """A total to back-propagate and its detached parts by name, such as `ce/6:128` and `kl/6:128`."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class SRLOptions:
    """What the paper and the two released codes do differently. The defaults are the paper's.

    temperature divides scores in the contrastive term; kl_temperature divides what the KL compares (None: the same).
    kl_rescale multiplies each KL by kl_temperature². kl_multiplier multiplies every KL besides kl_weight.
    kl_space scores: distributions over the passages; coords: softmax over the coordinates of raw embeddings.
    kl_teacher full: the full size; same_dim: the deepest layer cut to the student's dim.
    in_batch False restricts each query to its own group. size_weights multiply the contrastive terms, rung by rung.
    """

    temperature: float = 1.0
    normalize: bool = False
    reduction: Literal["mean", "sum"] = "mean"
    kl_weight: float = 1.0
    kl_temperature: float | None = None
    kl_rescale: bool = False
    kl_multiplier: float = 1.0
    kl_space: Literal["scores", "coords"] = "scores"
    kl_teacher: Literal["full", "same_dim"] = "full"
    detach_teacher: bool = True
    in_batch: bool = True
    size_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0 or not (self.kl_temperature is None or self.kl_temperature > 0):
            raise UserError("temperatures must be positive", "1 for dot products, 0.05 for cosines")
        if self.kl_weight < 0:
            raise UserError(f"--kl_weight {self.kl_weight} is negative", "0 switches the alignment off")
        if self.kl_teacher == "same_dim" and self.kl_space == "scores":
            raise UserError("--kl_teacher same_dim compares coordinates", "add --kl_space coords")
        if self.kl_space == "coords" and self.kl_teacher == "full":
            raise UserError("coordinates of different dims cannot be compared", "add --kl_teacher same_dim")


PRESETS: dict[str, SRLOptions] = {
    # arXiv 2410.13230, eq. 4-5 and Table 6
    "starbucks": SRLOptions(),
    # The released retrieval code adds the sizes up instead of averaging them.
    "starbucks-released": SRLOptions(reduction="sum"),
    # The released STS code: other KL, teacher with gradient, "kl_temperature" as a plain factor.
    "starbucks-sts-released": SRLOptions(
        temperature=0.05,
        normalize=True,
        reduction="sum",
        kl_temperature=1.0,
        kl_multiplier=0.3,
        kl_space="coords",
        kl_teacher="same_dim",
        detach_teacher=False,
    ),
}


def srl(
    queries: Mapping[int, Tensor],
    passages: Mapping[int, Tensor],
    sizes: Sizes,
    options: SRLOptions,
    excluded: Tensor | None = None,
) -> Loss:
    """The SRL loss of one batch.

    queries, passages: pooled taps {layer: [texts, hidden]}; passages lie group after group, the positive first.
    excluded: bool [queries, passages], passages that are neither positive nor negative for a query.
    L = Σ w CE + λ Σ KL(full ‖ size), divided by the number of sizes when reduction is "mean".
    Raises UserError when the ladder lacks its full size, which is the teacher.
    Source: Starbucks (arXiv 2410.13230), eq. 4-5.
    """
    full = teacher_of(sizes)
    if options.size_weights is not None and len(options.size_weights) != len(sizes):
        raise UserError(f"{len(options.size_weights)} size weights for {len(sizes)} sizes", "give one per size")
    deepest = queries[full.layer]
    targets = positive_columns(len(deepest), len(passages[full.layer]), deepest.device)
    if not options.in_batch:
        excluded = _outside_own_group(len(deepest), len(passages[full.layer]), targets, excluded)
    scores = ladder_scores(queries, passages, sizes, options.normalize)
    weights = options.size_weights or (1.0,) * len(sizes)

    parts: dict[str, Tensor] = {}
    total = deepest.new_zeros(())
    for size, weight in zip(sizes, weights):
        ce = info_nce(scores[size], targets, options.temperature, excluded)
        total = total + weight * ce
        parts[f"ce/{size}"] = ce.detach()
        if size != full and options.kl_weight > 0:
            kl = _alignment(size, full, queries, passages, scores, options, excluded)
            total = total + options.kl_weight * options.kl_multiplier * kl
            parts[f"kl/{size}"] = kl.detach()
    if options.reduction == "mean":
        total = total / len(sizes)
    return Loss(total, parts)


def teacher_of(sizes: Sizes) -> Size:
    """The full size of a ladder. Raises UserError when it is not one of the rungs."""
    if sizes.full not in sizes.rungs:
        raise UserError(f"the ladder {sizes} lacks its full size {sizes.full}, the teacher", f"add {sizes.full}")
    return sizes.full


def _alignment(
    size: Size,
    full: Size,
    queries: Mapping[int, Tensor],
    passages: Mapping[int, Tensor],
    scores: Mapping[Size, Tensor],
    options: SRLOptions,
    excluded: Tensor | None,
) -> Tensor:
    temperature = options.kl_temperature or options.temperature
    if options.kl_space == "coords":

        def texts(layer: int) -> Tensor:
            return torch.cat([queries[layer][:, : size.dim], passages[layer][:, : size.dim]])

        teacher = texts(full.layer)
        kl = coordinate_kl(teacher.detach() if options.detach_teacher else teacher, texts(size.layer), temperature)
    else:
        teacher = scores[full]
        kl = score_kl(teacher.detach() if options.detach_teacher else teacher, scores[size], temperature, excluded)
    return kl * temperature**2 if options.kl_rescale else kl


def _outside_own_group(queries: int, passages: int, targets: Tensor, excluded: Tensor | None) -> Tensor:
    group = passages // queries
    columns = torch.arange(passages, device=targets.device)
    outside = (columns // group)[None, :] != torch.arange(queries, device=targets.device)[:, None]
    return outside if excluded is None else outside | excluded
