"""What a fit found: the quality of every layer and dim before and after, and the sizes that serve best."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from starbucks_retrieval.models.by_size import BySize
from starbucks_retrieval.models.fitting import unit
from starbucks_retrieval.sizes import Size, Sizes

RECORD = "fit.json"  # of a fit, beside the maps
_NEIGHBOURS = 10
_SMALLEST_DIM = 16
_RECOMMENDED_DIM = 32  # narrower embeddings serve nobody well
_SIZES = 6  # recommended ones, as many as there are size aliases


class Quality(NamedTuple):
    """How well the embeddings at one size stand for the full ones, on held-out texts.

    Attributes:
        cosine: The mean cosine to the full embedding, missing dimensions counting as zeros.
        top10: The mean share of a text's ten nearest other texts that are those by the full embedding.
    """

    cosine: float
    top10: float


@dataclasses.dataclass(frozen=True)
class FitReport:
    """What a fit found.

    Attributes:
        texts: The number of texts that were fitted; those held out come on top.
        held_out: The number of texts that were held out.
        ridges: {layer: the λ that was taken}.
        before: {size: quality of the pooled output cut to the size}; a size may be text: `before["4:128"]`.
        after: {size: quality of the projected output cut to the size}, likewise.
    """

    texts: int
    held_out: int
    ridges: dict[int, float]
    before: dict[Size, Quality]
    after: dict[Size, Quality]

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            object.__setattr__(self, name, BySize(getattr(self, name)))

    def __repr__(self) -> str:
        layers = sorted({size.layer for size in self.after})
        return f"FitReport({self.texts} texts, {self.held_out} held out; layers {layers}, {len(self.after)} sizes)"

    def recommended(self, count: int = _SIZES) -> Sizes:
        """Return the sizes that serve best whatever number of layers and dims one can afford.

        A budget is one (layer, dim) of the grid, and what it gets is the best `top10` of a chosen size within it. The
        full size comes first, then, one by one, the size that adds most over all budgets.

        Args:
            count: How many sizes; fewer if the grid is smaller.
        """
        quality = {size: found.top10 for size, found in self.after.items() if size.dim >= _RECOMMENDED_DIM}
        quality = quality or {size: found.top10 for size, found in self.after.items()}
        reached = dict.fromkeys(quality, 0.0)
        chosen: list[Size] = []
        best: Size | None = max(quality)
        while best is not None:
            chosen.append(best)
            reached = {budget: _reached(budget, best, quality, value) for budget, value in reached.items()}
            gains = {
                size: sum(_reached(budget, size, quality, value) - value for budget, value in reached.items())
                for size in quality
                if size not in chosen
            }
            best = max(gains, key=lambda size: (gains[size], size), default=None) if len(chosen) < count else None
        return Sizes(sorted(chosen))


def _reached(budget: Size, size: Size, quality: Mapping[Size, float], value: float) -> float:
    within = size.layer <= budget.layer and size.dim <= budget.dim
    return max(value, quality[size]) if within else value


def grid_dims(hidden_size: int) -> list[int]:
    """Return the dims of a fit's grid: 16, 32, 64, … below the hidden size, and the hidden size.

    Example:
        >>> grid_dims(384)
        [16, 32, 64, 128, 256, 384]
    """
    count = max(0, math.ceil(math.log2(hidden_size / _SMALLEST_DIM)))
    return [*(_SMALLEST_DIM * 2**i for i in range(count)), hidden_size]


def quality(vectors: np.ndarray, full: np.ndarray, nearest: np.ndarray, normalize: bool) -> Quality:
    cosine = (unit(vectors) * unit(full)[:, : vectors.shape[1]]).sum(axis=1)
    found = nearest_rows(unit(vectors) if normalize else vectors)
    shared = (found[:, :, None] == nearest[:, None, :]).any(axis=2).mean() if found.size else float("nan")
    return Quality(float(cosine.mean()), float(shared))


def nearest_rows(vectors: np.ndarray) -> np.ndarray:
    """Return the positions of each row's nearest other rows by dot product."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, : min(_NEIGHBOURS, max(0, len(vectors) - 1))]
