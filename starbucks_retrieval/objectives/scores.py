"""Query-passage scores at every size of a ladder, without a tensor of shape [queries, passages, hidden]."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from starbucks_retrieval.sizes import Size, Sizes

_TINY = 1e-12


def ladder_scores(
    queries: Mapping[int, Tensor], passages: Mapping[int, Tensor], sizes: Sizes, normalize: bool
) -> dict[Size, Tensor]:
    """Scores {size: [queries, passages]} from taps {layer: [texts, hidden]}: dot products, or cosines with `normalize`.

    The dims of one layer nest, so each adds only its own block of coordinates to the scores of the dim before it.
    """
    scores: dict[Size, Tensor] = {}
    for layer in sizes.layers:
        q, p = queries[layer], passages[layer]
        dot = q.new_zeros(())
        q_square = p_square = dot
        start = 0
        for dim in [size.dim for size in sizes if size.layer == layer]:
            q_block, p_block = q[:, start:dim], p[:, start:dim]
            dot = dot + q_block @ p_block.T
            score = dot
            if normalize:
                q_square = q_square + q_block.square().sum(1)
                p_square = p_square + p_block.square().sum(1)
                score = dot / _norm(q_square)[:, None] / _norm(p_square)[None, :]
            scores[Size(layer, dim)] = score
            start = dim
    return scores


def _norm(square: Tensor) -> Tensor:
    # Clamped before the root: the root's derivative at zero is infinite.
    return square.clamp(min=_TINY**2).sqrt()
