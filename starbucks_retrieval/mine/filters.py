"""Which candidates become negatives.

The limits by the positive's score are TopK-MarginPos and TopK-PercPos of NV-Retriever (arXiv 2407.15831, section 3).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy as np

from starbucks_retrieval.data import Passage

_WORD = re.compile(r"\w+")


def generator(seed: int, query_id: str) -> np.random.Generator:
    """The random choices of one query: the same whatever other queries there are, and in whatever order."""
    digest = hashlib.blake2b(query_id.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])


def choose(
    rows: np.ndarray,
    scores: np.ndarray,
    positives: np.ndarray,
    lowest: float | None,
    *,
    window: tuple[int, int],
    margin: float | None,
    ratio: float | None,
    wanted: int,
    sampling: Literal["random", "top"],
    rng: np.random.Generator,
    is_duplicate: Callable[[int], bool],
) -> tuple[np.ndarray, Counter[str]]:
    """Places in one query's candidates that become its negatives, best first, and how many each filter dropped.

    rows, scores: [depth], -1 after the last. positives: rows never taken. lowest: the lowest score of a positive, None
    where unknown: margin and ratio then drop nothing, nor does ratio where it is not above 0. `window`: first and last
    rank after the positives are gone. `is_duplicate` is asked of rows in the order in which they are drawn, until
    `wanted` are found.
    """
    dropped: Counter[str] = Counter()
    listed = np.flatnonzero(rows >= 0)
    places = listed[~np.isin(rows[listed], positives)]
    dropped["positives"] = len(listed) - len(places)
    inside = places[window[0] - 1 : window[1]]
    dropped["range"] = len(places) - len(inside)
    if margin is not None and lowest is not None:
        inside = _up_to(lowest - margin, inside, scores, dropped, "margin")
    if ratio is not None and lowest is not None and lowest > 0:
        inside = _up_to(ratio * lowest, inside, scores, dropped, "ratio")
    chosen: list[int] = []
    for place in rng.permutation(inside) if sampling == "random" else inside:
        if len(chosen) == wanted:
            break
        if is_duplicate(int(rows[place])):
            dropped["duplicates"] += 1
        else:
            chosen.append(int(place))
    return np.array(sorted(chosen), np.int64), dropped


def _up_to(limit: float, places: np.ndarray, scores: np.ndarray, dropped: Counter[str], name: str) -> np.ndarray:
    kept = places[scores[places] <= limit]
    dropped[name] = len(places) - len(kept)
    return kept


def words(passage: Passage) -> frozenset[str]:
    """The distinct words of the text, case folded; of the title where there is no text."""
    return frozenset(_WORD.findall((passage.text.strip() or passage.title).casefold()))


def are_near(a: frozenset[str], b: frozenset[str], threshold: float) -> bool:
    """Whether two texts share at least `threshold` of all their words: |a ∩ b| / |a ∪ b|. Two without words are equal."""
    if min(len(a), len(b)) < threshold * max(len(a), len(b)):
        return False
    shared = len(a & b)
    return shared >= threshold * (len(a) + len(b) - shared)
