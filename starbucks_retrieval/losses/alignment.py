"""Kullback-Leibler divergences that pull a smaller size towards the full one."""

from __future__ import annotations

from torch import Tensor

from starbucks_retrieval.losses.contrastive import exclude


def kl_rows(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean over rows of KL(softmax(teacher) || softmax(student)); logits of any shape [rows, columns]."""
    log_t, log_s = teacher.log_softmax(-1), student.log_softmax(-1)
    return (log_t.exp() * (log_t - log_s)).sum() / teacher.shape[0]


def score_kl(teacher: Tensor, student: Tensor, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """KL between score distributions over the passages [queries, passages]. Source: Starbucks, eq. 5."""
    return kl_rows(exclude(teacher / temperature, excluded), exclude(student / temperature, excluded))


def coordinate_kl(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL between softmaxes over the coordinates of raw embeddings [texts, dim], as the released STS code has it."""
    return kl_rows(teacher / temperature, student / temperature)
