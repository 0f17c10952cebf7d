"""What a size costs: milliseconds a query, milliseconds and bytes a passage; and the front of quality over cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

_NAMES = ("query_ms", "passage_ms", "bytes_per_passage")


@dataclass(frozen=True)
class Cost:
    """Of one size: milliseconds to encode a query and a passage, bytes to store a passage; None where not measured."""

    query_ms: float | None
    passage_ms: float | None
    bytes_per_passage: float | None


def read_costs(more: Mapping[str, Any], path: str) -> dict[Size, Cost]:
    """The `costs` of a result file, by size: `{"6:128": {"query_ms": …, "passage_ms": …, "bytes_per_passage": …}}`.

    Raises UserError for a size that cannot be read and for what is no number.
    """
    try:
        return {
            Size.parse(size): Cost(*(_number(record.get(name)) for name in _NAMES))
            for size, record in (more.get("costs") or {}).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(f"{path}: damaged costs: {type(error).__name__}: {error}", "measure again") from None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) and number > 0 else None


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the (cost, quality) points that no other is both as cheap and as good as, by rising cost.

    Of equal points the first stays.
    """
    best, kept = -math.inf, []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[place][1] > best:
            best = points[place][1]
            kept.append(place)
    return kept
