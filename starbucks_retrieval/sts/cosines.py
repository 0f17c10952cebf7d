"""Cosines of pairs at growing dims of one layer, each dim's from the last one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_CHUNK = 4096  # pairs whose products stand in memory at a time


def nested_cosines(
    vectors: np.ndarray, first: np.ndarray, second: np.ndarray, dims: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(dim, cosines float64 [pairs]) at every one of the ascending `dims`, of pairs of the rows `first` and `second`.

    `vectors` [texts, hidden] is a layer's embedding at the largest dim. Products and squared lengths of a dim are those
    of the last dim plus those of the numbers between, so nothing is multiplied twice. Whether the vectors were
    normalised at their full length does not matter. A vector of zeros has cosine 0 with every other.
    """
    products = np.zeros(len(first))
    squares = np.zeros(len(vectors))
    start = 0
    for dim in dims:
        block = vectors[:, start:dim].astype(np.float64)
        squares += np.einsum("ij,ij->i", block, block)
        for begin in range(0, len(first), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            products[part] += np.einsum("ij,ij->i", block[first[part]], block[second[part]])
        lengths = np.sqrt(squares)
        lengths = lengths[first] * lengths[second]
        cosines = np.divide(products, lengths, out=np.zeros(len(first)), where=lengths > 0)
        cosines[first == second] = 1.0  # rounding would rank pairs of equal sentences among themselves
        yield dim, np.clip(cosines, -1, 1)
        start = dim
