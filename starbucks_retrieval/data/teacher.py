"""A teacher's scores in a training row: one for each passage of the row, to distil from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starbucks_retrieval.data.fields import NEGATIVE_SCORES, POSITIVE_SCORES, BadRow, as_list, as_number


def teacher_scores(row: dict[str, Any], positives: Sequence[str], negatives: Sequence[str]) -> dict[str, float] | None:
    """Id → score from `positive_scores` and `negative_scores`; None for a row that has neither.

    `positives` and `negatives` are the row's ids as listed, before equal ones are merged: the scores stand in their
    order. A single number counts as a list of one. An id of both sides has its score as a positive. Raises BadRow for
    another number of scores than of ids, for one side left out, and for an id that is scored twice differently.
    """
    if row.get(POSITIVE_SCORES) is None and row.get(NEGATIVE_SCORES) is None:
        return None
    scores = _side(row, POSITIVE_SCORES, positives)
    for docid, score in _side(row, NEGATIVE_SCORES, negatives).items():
        scores.setdefault(docid, score)
    return scores


def _side(row: dict[str, Any], column: str, docids: Sequence[str]) -> dict[str, float]:
    found = row.get(column)
    if found is None and docids:
        other = NEGATIVE_SCORES if column == POSITIVE_SCORES else POSITIVE_SCORES
        raise BadRow(f"the row has {other} but no {column}", "score both sides, or neither")
    listed = [found] if isinstance(found, (int, float, str)) else as_list(found, column)
    if len(listed) != len(docids):
        raise BadRow(
            f"{column} has {len(listed)} score{'' if len(listed) == 1 else 's'} for {len(docids)} "
            f"passage{'' if len(docids) == 1 else 's'}",
            "give every passage its score, in the order of the passages",
        )
    scores: dict[str, float] = {}
    for docid, item in zip(docids, listed):
        score = as_number(item, column)
        if scores.setdefault(docid, score) != score:
            raise BadRow(
                f"{column} has {scores[docid]} and {score} for one passage, {docid!r}", "list a passage once a side"
            )
    return scores
