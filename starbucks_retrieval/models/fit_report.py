"""The texts that a fit needs, and what it found: the quality of every layer and dim, and the sizes that serve best."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from starbucks_retrieval.models.by_size import BySize
from starbucks_retrieval.models.fitting import unit
from starbucks_retrieval.sizes import Size, Sizes

RECORD = "fit.json"  # of a fit, beside the maps
_HELD_OUT_EVERY = 10  # one text of ten, until there are enough of them
_HELD_OUT = 1000
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


def measured_dims(hidden_size: int) -> list[int]:
    """Return the dims that a fit is measured at: 16, 32, 64, … below the hidden size, and the hidden size.

    Example:
        >>> measured_dims(384)
        [16, 32, 64, 128, 256, 384]
    """
    count = max(0, math.ceil(math.log2(hidden_size / _SMALLEST_DIM)))
    return [*(_SMALLEST_DIM * 2**i for i in range(count)), hidden_size]


def quality(vectors: np.ndarray, full: np.ndarray, nearest: np.ndarray, normalize: bool) -> Quality:
    """Measure how well embeddings stand for the full ones.

    Args:
        vectors: [texts, dim].
        full: [texts, hidden], turned to the axes of `vectors`.
        nearest: The positions of each text's nearest other texts by the full embedding, as `nearest_rows` returns them.
        normalize: Compare `vectors` by cosine, not by dot product.
    """
    cosine = (unit(vectors) * unit(full)[:, : vectors.shape[1]]).sum(axis=1)
    found = nearest_rows(unit(vectors) if normalize else vectors)
    shared = (found[:, :, None] == nearest[:, None, :]).any(axis=2).mean() if found.size else float("nan")
    return Quality(float(cosine.mean()), float(shared))


def nearest_rows(vectors: np.ndarray, start: int = 0, count: int | None = None) -> np.ndarray:
    """Return the positions of the nearest other rows by dot product, of each row of a block.

    Args:
        vectors: [texts, dim].
        start: The first row of the block, whose pairs with all rows are scored at once.
        count: The most rows of the block; None: all after `start`.

    Returns:
        int64 [block, neighbours], the nearest first, and of equal scores the earlier row. There are ten neighbours, or
        all other rows if they are fewer.
    """
    block = vectors[start : None if count is None else start + count]
    scores = block @ vectors.T
    diagonal = np.arange(len(block))
    scores[diagonal, start + diagonal] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, : min(_NEIGHBOURS, max(0, len(vectors) - 1))]


def map_inputs(layers: Iterable[int], last: int, concat_layers: bool, table_input: bool) -> dict[int, tuple[int, ...]]:
    """Return {layer: the layers that its map takes, 0 for the token table}, of the fitted layers between 0 and the last.

    Args:
        layers: The layers that are fitted.
        last: The last layer of the model.
        concat_layers: As in `Fitter`.
        table_input: As in `Fitter`.

    Example:
        >>> map_inputs([0, 1, 2, 6], 6, concat_layers=False, table_input=True)
        {1: (0, 1), 2: (0, 2)}
    """
    fitted = list(layers)
    first = (0,) if table_input and 0 in fitted else ()
    return {
        layer: (*first, *(range(1, layer + 1) if concat_layers else (layer,))) for layer in fitted if 0 < layer < last
    }


def fitted_texts_needed(hidden: int, inputs: Mapping[int, Sequence[int]]) -> int:
    """Return the fewest texts that maps are fitted on: one for each number of their layers.

    Ridge regression needs none for the numbers of the token table, which is a good embedding by itself.

    Args:
        hidden: The width of the model.
        inputs: What `map_inputs` returns.

    Example:
        >>> fitted_texts_needed(384, {1: (0, 1), 2: (0, 1, 2)})
        768
    """
    return hidden * max([1, *(sum(map(bool, found)) for found in inputs.values())])


def is_held_out(number: int) -> bool:
    """Return whether the text with this number, from 0, is held out: every tenth, up to 1,000 of them.

    Example:
        >>> [number for number in range(25) if is_held_out(number)]
        [0, 10, 20]
    """
    return number % _HELD_OUT_EVERY == 0 and number < _HELD_OUT_EVERY * _HELD_OUT


def texts_needed(width: int) -> int:
    """Return how many texts fit a map whose input has `width` numbers: one for each, and those that are held out.

    Example:
        >>> texts_needed(384)
        427
    """
    fitted = number = 0
    while fitted < width:
        fitted += not is_held_out(number)
        number += 1
    return number
