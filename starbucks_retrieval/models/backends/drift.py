"""How far the embeddings of a back end are from those in float32."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import json_bytes
from starbucks_retrieval.models.backends.base import Backend, GraphBackend, TokenRows
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.fit_report import nearest_rows
from starbucks_retrieval.sizes import Size, Sizes

_BLOCK = 1024  # rows whose scores against all rows are held at once


def drift(
    backend: Backend, encoder: NestedEncoder, rows: TokenRows, sizes: Sizes, max_tokens: int = 4096
) -> dict[Size, dict[str, float]]:
    """Compare the embeddings of a back end with those of torch in float32.

    Args:
        backend: An open back end of the encoder.
        encoder: The encoder.
        rows: At least two token rows.
        sizes: The sizes to compare.
        max_tokens: The largest rows x longest row of a batch.

    Returns:
        For each size, `cosine`: the mean cosine of the two embeddings of a text; and `top10`: the mean share of a
        text's ten nearest other texts by dot product that both agree on (all others where there are fewer than ten).

    Raises:
        UserError: There are fewer than two rows.
    """
    if len(rows) < 2:
        raise UserError(f"{len(rows)} texts have no neighbours to compare", "take some hundred")
    exact = encoder.embed(rows, sizes, max_tokens=max_tokens)
    other = backend.embed(rows, sizes, max_tokens=max_tokens)
    return {
        size: {"cosine": _mean_cosine(exact[size], other[size]), "top10": _overlap(exact[size], other[size])}
        for size in sizes
    }


def kept_drift(
    backend: Backend, encoder: NestedEncoder, rows: TokenRows, sizes: Sizes, max_tokens: int = 4096
) -> dict[Size, dict[str, float]]:
    """Return what `drift` returns; for a back end with a kept graph it is measured once, and kept beside the graph.

    Args:
        backend: An open back end of the encoder, whose weights are those that it was opened with.
        encoder, rows, sizes, max_tokens: As for `drift`.

    Raises:
        UserError: As `drift`.
    """

    def measure() -> dict[str, dict[str, float]]:
        return {str(size): values for size, values in drift(backend, encoder, rows, sizes, max_tokens).items()}

    kept = backend.kept if isinstance(backend, GraphBackend) else None
    circumstances = {
        "rows": hashlib.blake2b(json_bytes([list(row) for row in rows]), digest_size=16).hexdigest(),
        "sizes": [str(size) for size in sizes],
        "normalize": encoder.config.normalize,
        "max_tokens": max_tokens,
        "threads": torch.get_num_threads(),
    }
    found = measure() if kept is None else kept.figures("drift", circumstances, measure)
    return {size: found[str(size)] for size in sizes}


def _mean_cosine(a: np.ndarray, b: np.ndarray) -> float:
    dots = np.einsum("nd,nd->n", a, b, dtype=np.float64)
    norms = np.linalg.norm(a.astype(np.float64), axis=1) * np.linalg.norm(b.astype(np.float64), axis=1)
    return float((dots / np.maximum(norms, np.finfo(np.float64).tiny)).mean())


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    shared = 0.0
    for start in range(0, len(a), _BLOCK):
        near_a, near_b = nearest_rows(a, start, _BLOCK), nearest_rows(b, start, _BLOCK)  # [block, neighbours]
        shared += (near_a[:, :, None] == near_b[:, None, :]).any(axis=2).mean(axis=1).sum()
    return float(shared / len(a))
