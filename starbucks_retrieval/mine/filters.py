"""Filters that choose negatives among the candidates of a query."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy as np

from starbucks_retrieval.data import Passage

_WORD = re.compile(r"\w+")


def query_generator(seed: int, query_id: str) -> np.random.Generator:
    """Return the random generator of one query, independent of the other queries and of their order.

    Args:
        seed: Seed of the whole job.
        query_id: Id of the query. Equal seeds and ids give the same random numbers.

    Example:
        >>> first, again, other = (query_generator(42, name).integers(10**9) for name in ("q1", "q1", "q2"))
        >>> bool(first == again), bool(first == other)
        (True, False)
    """
    digest = hashlib.blake2b(query_id.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])


def choose_negatives(
    rows: np.ndarray,
    scores: np.ndarray,
    positives: np.ndarray,
    lowest: float | None,
    *,
    window: tuple[int, int],
    margin: float | None,
    ratio: float | None,
    count: int,
    sampling: Literal["random", "top"],
    rng: np.random.Generator,
    is_duplicate: Callable[[int], bool],
) -> tuple[np.ndarray, Counter[str]]:
    """Choose the negatives of one query among its candidates.

    The limits relative to the positive's score are TopK-MarginPos and TopK-PercPos of NV-Retriever (arXiv 2407.15831,
    section 3).

    Args:
        rows: [depth], corpus rows, best first, -1 after the last.
        scores: [depth].
        positives: Rows that are never chosen.
        lowest: The lowest score of a positive; None if unknown, and then `margin` and `ratio` drop nothing.
        window: First and last rank to choose from, counted from 1 after removing the positives.
        margin: Keep scores up to `lowest - margin`.
        ratio: Keep scores up to `ratio * lowest`; drops nothing unless `lowest` is above 0.
        count: Number of negatives at most.
        sampling: random draws among the remaining candidates; top takes the best.
        rng: Generator of the random draws.
        is_duplicate: Called with rows in the order of drawing, until `count` negatives are found.

    Returns:
        Ascending positions in `rows`, and how many candidates each filter dropped.
    """
    dropped: Counter[str] = Counter()
    listed = np.flatnonzero(rows >= 0)
    ranked = listed[~np.isin(rows[listed], positives)]
    dropped["positives"] = len(listed) - len(ranked)
    inside = ranked[window[0] - 1 : window[1]]
    dropped["range"] = len(ranked) - len(inside)
    if margin is not None and lowest is not None:
        inside = _up_to(lowest - margin, inside, scores, dropped, "margin")
    if ratio is not None and lowest is not None and lowest > 0:
        inside = _up_to(ratio * lowest, inside, scores, dropped, "ratio")
    chosen: list[int] = []
    for position in rng.permutation(inside) if sampling == "random" else inside:
        if len(chosen) == count:
            break
        if is_duplicate(int(rows[position])):
            dropped["duplicates"] += 1
        else:
            chosen.append(int(position))
    return np.array(sorted(chosen), np.int64), dropped


def _up_to(limit: float, positions: np.ndarray, scores: np.ndarray, dropped: Counter[str], name: str) -> np.ndarray:
    kept = positions[scores[positions] <= limit]
    dropped[name] = len(positions) - len(kept)
    return kept


def word_set(passage: Passage) -> frozenset[str]:
    """Return the distinct case-folded words of the text, or of the title if there is no text.

    Example:
        >>> sorted(word_set(Passage("d1", "a title", "To be, or not to be")))
        ['be', 'not', 'or', 'to']
    """
    return frozenset(_WORD.findall((passage.text.strip() or passage.title).casefold()))


def near_duplicates(a: frozenset[str], b: frozenset[str], threshold: float) -> bool:
    """Return whether the Jaccard similarity |a ∩ b| / |a ∪ b| is at least `threshold`; two empty sets are equal.

    Example:
        >>> near_duplicates(frozenset("abc"), frozenset("abcd"), 0.75)
        True
    """
    if min(len(a), len(b)) < threshold * max(len(a), len(b)):
        return False
    shared = len(a & b)
    return shared >= threshold * (len(a) + len(b) - shared)
