"""What result files hold besides scores: the costs of sizes, and the findings of the preflight."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size

_COSTS = ("query_ms", "passage_ms", "bytes_per_passage")
_SHOWN = 3  # sizes that the sentence about a finding names


@dataclass(frozen=True)
class Cost:
    """The cost of one size; None where it was not measured.

    Args:
        query_ms: Milliseconds to encode a query.
        passage_ms: Milliseconds to encode a passage.
        bytes_per_passage: Bytes to store a passage.
    """

    query_ms: float | None
    passage_ms: float | None
    bytes_per_passage: float | None


def read_costs(more: Mapping[str, Any], path: str) -> dict[Size, Cost]:
    """Return the `costs` of a result file by size.

    Args:
        more: The keys of the file besides its cells.
        path: The file, for messages.

    Raises:
        UserError: A size or a number cannot be read.

    Example:
        >>> read_costs({"costs": {"6:128": {"query_ms": 2}}}, "grid.json")
        {Size(layer=6, dim=128): Cost(query_ms=2.0, passage_ms=None, bytes_per_passage=None)}
    """
    try:
        return {
            Size.parse(size): Cost(*(_positive_or_none(record.get(name)) for name in _COSTS))
            for size, record in (more.get("costs") or {}).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(f"{path}: damaged costs: {type(error).__name__}: {error}", "measure again") from None


def _positive_or_none(value: Any) -> float | None:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) and number > 0 else None


def preflight_warnings(label: str, more: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each serious finding in a result file, since a report must show them with the scores.

    Args:
        label: The method; findings about other methods of the file are left out.
        more: The keys of the file besides its cells. A file without findings in the known form has no warnings.
    """
    try:
        of_grid = _grid_findings(label, more.get("findings") or {})
        of_runs = _run_findings(label, more.get("runs") or [])
        return [*of_grid, *of_runs, *_judgement_findings(more.get("sets") or [])]
    except (AttributeError, KeyError, TypeError):
        return []


def _grid_findings(label: str, findings: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """Yield one sentence for each kind of finding in {data set: {size: [kind]}}."""
    for dataset, by_size in findings.items():
        kinds: dict[str, list[str]] = {}
        for size, names in by_size.items():
            for name in names:
                kinds.setdefault(name, []).append(size)
        for kind, sizes in kinds.items():
            sizes.sort(key=lambda size: [int(number) for number in re.findall(r"\d+", size)])
            more = f" and {len(sizes) - _SHOWN} more sizes" if len(sizes) > _SHOWN else ""
            yield f"{label}, {dataset} at {', '.join(sizes[:_SHOWN])}{more}: {kind.replace('_', ' ')}"


def _run_findings(label: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the findings about the runs of an evaluation; in a file of one method, all runs are of that method."""
    several = len({run.get("label") for run in runs}) > 1
    for run in runs:
        if several and run.get("label") != label:
            continue
        at = f" at {run['size']}" if run.get("size") else ""
        for finding in run.get("findings", ()):
            if finding["serious"]:
                yield f"{label}, {run['dataset']}{at}: {finding['what']}"


def _judgement_findings(sets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the findings about the judgements of an evaluation, which concern every method."""
    for judged in sets:
        for finding in judged.get("findings", ()):
            if finding["serious"]:
                yield f"{judged['name']}, its judgements: {finding['what']}"
