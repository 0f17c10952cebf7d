"""How far a runtime's embeddings lie from the encoder's own in fp32: what a quantised one reports about itself."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends.base import Backend, TokenRows
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

_NEIGHBOURS = 10
_BLOCK = 1024  # rows whose scores against all rows are held at once


def drift(
    runtime: Backend, encoder: NestedEncoder, rows: TokenRows, sizes: Sizes, max_tokens: int = 4096
) -> dict[Size, dict[str, float]]:
    """How alike two embeddings of the same token rows are, runtime's and torch's in fp32, at every size.

    cosine: the mean cosine of a text's two embeddings. top10: the mean share of a text's ten nearest other texts
    (all others where there are fewer) by one that are also its ten nearest by the other, dot products being the scores.
    Raises UserError for fewer than two rows.
    """
    if len(rows) < 2:
        raise UserError(f"{len(rows)} texts have no neighbours to compare", "take some hundred")
    exact = encoder.embed(rows, sizes, max_tokens=max_tokens)
    other = runtime.embed(rows, sizes, max_tokens=max_tokens)
    return {
        size: {"cosine": _cosine(exact[size], other[size]), "top10": _top10(exact[size], other[size])} for size in sizes
    }


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    dots = np.einsum("nd,nd->n", a, b, dtype=np.float64)
    norms = np.linalg.norm(a.astype(np.float64), axis=1) * np.linalg.norm(b.astype(np.float64), axis=1)
    return float((dots / np.maximum(norms, np.finfo(np.float64).tiny)).mean())


def _top10(a: np.ndarray, b: np.ndarray) -> float:
    shared = 0.0
    for start in range(0, len(a), _BLOCK):
        ours, theirs = _neighbours(a, start), _neighbours(b, start)  # [block, neighbours]
        shared += (ours[:, :, None] == theirs[:, None, :]).any(axis=2).mean(axis=1).sum()
    return float(shared / len(a))


def _neighbours(vectors: np.ndarray, start: int) -> np.ndarray:
    """The nearest other rows of the rows of one block; equal scores in the order of the rows."""
    block = vectors[start : start + _BLOCK]
    scores = block @ vectors.T
    own = np.arange(len(block))
    scores[own, start + own] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, : min(_NEIGHBOURS, len(vectors) - 1)]
