"""How good ten results are: nDCG@10 by judgements, or agreement with the exact ten best of the full size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import EmbeddingStore

CUTOFF = 10
# One-sided bound at 95 % of the difference between a mean over the queries at hand and one over as many others:
# 1.645 standard errors × √2.
MARGIN = 2.33

Qrels = Mapping[str, Mapping[str, int]]


class Quality(Protocol):
    """Scores results.

    Attributes:
        name: The name of the score, such as nDCG@10.
    """

    name: str

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return a score from 0 to 1 for every query.

        Args:
            rows: Rows of the passages [queries, up to 10], best first; -1 stands for none.

        Returns:
            [queries] float64.
        """
        ...


def lower_share(scores: np.ndarray, full: np.ndarray, margin: float = MARGIN) -> float:
    """Return a lower bound of the share of the full size's quality that a funnel keeps on other queries like these.

    Args:
        scores: Of the funnel [queries].
        full: Of the full size, for the same queries.
        margin: Standard errors to subtract from the share of these queries.

    Example:
        >>> full = np.ones(100)
        >>> lower_share(full, full), round(lower_share(np.arange(100) > 0, full), 3)
        (1.0, 0.967)
    """
    share = scores.sum() / full.sum()
    if len(full) < 2:
        return float(share)
    error = np.std(scores - share * full, ddof=1) / (full.mean() * np.sqrt(len(full)))
    return float(share - margin * error)


class JudgedQuality:
    """nDCG@10 with linear gains, as in trec_eval.

    Args:
        judgements: {docid: grade} for each query, in the order of the results to score. Grades above 0 are relevant;
            relevant documents that are not among the passages count in the ideal ranking.
        store: The passages, whose ids are read once.

    Raises:
        UserError: No relevant document is among the passages.
    """

    name = "nDCG@10"

    def __init__(self, judgements: Sequence[Mapping[str, int]], store: EmbeddingStore) -> None:
        wanted = {docid for grades in judgements for docid, grade in grades.items() if grade > 0}
        rows: dict[str, int] = {}
        for start in range(0, store.count, 65536):
            block = np.arange(start, min(start + 65536, store.count))
            rows.update((docid, row) for docid, row in zip(store.ids(block), block.tolist()) if docid in wanted)
        if not rows:
            raise UserError(
                f"none of the {len(wanted)} relevant documents of the qrels is among the passages: their ids are like "
                f"{example(wanted)}, those of the passages like {store.ids(np.array([0]))[0]!r}",
                "give the qrels of this corpus",
            )
        self._gains = [
            {rows[docid]: grade for docid, grade in grades.items() if grade > 0 and docid in rows}
            for grades in judgements
        ]
        discounts = 1 / np.log2(np.arange(2, CUTOFF + 2))
        ideal = [sorted((grade for grade in grades.values() if grade > 0), reverse=True) for grades in judgements]
        best = np.array([np.dot(line[:CUTOFF], discounts[: len(line)]) for line in ideal])
        self._discounts = discounts
        self._scale = np.divide(1, best, out=np.zeros(len(best)), where=best > 0)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """As `Quality.scores`."""
        gains = [[of_query.get(row, 0) for row in line] for of_query, line in zip(self._gains, rows.tolist())]
        return np.array(gains, float) @ self._discounts[: rows.shape[1]] * self._scale


class Agreement:
    """The share of the ten best passages of exact search at the full size that the results have.

    Args:
        exact: Their rows [queries, up to 10].
    """

    name = "agreement@10"

    def __init__(self, exact: np.ndarray) -> None:
        self._exact = exact

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """As `Quality.scores`."""
        return (self._exact[:, :, None] == rows[:, None, :]).any(axis=2).mean(axis=1)


def example(names: Iterable[str]) -> str:
    """Return the first of some names, quoted, for a message."""
    return repr(next(iter(names), ""))
