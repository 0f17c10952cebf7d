"""What a report warns of: findings of the preflight in its files, and methods that were not trained alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 3  # sizes that the sentence about a finding names


def preflight_warnings(label: str, more: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each serious finding in a result file, since a report must show them with the scores.

    Args:
        label: The method; findings about other methods of the file are left out.
        more: The keys of the file besides its cells. A file without findings in the known form has no warnings.
    """
    try:
        of_grid = _grid_findings(label, more.get("findings") or {})
        return [*of_grid, *_findings_of_evaluate(label, more.get("runs") or [], more.get("sets") or [])]
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


def _findings_of_evaluate(
    label: str, runs: Sequence[Mapping[str, Any]], sets: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the findings about the runs of a method, and those about judgements, which concern every method."""
    several = len({run.get("label") for run in runs}) > 1  # in a file of one method, all runs are of that method
    checked = []
    for run in runs:
        if not several or run.get("label") == label:
            at = f" at {run['size']}" if run.get("size") else ""
            checked.append((f"{label}, {run['dataset']}{at}", run))
    checked += [(f"{judged['name']}, its judgements", judged) for judged in sets]
    for name, found in checked:
        yield from (f"{name}: {finding['what']}" for finding in found.get("findings", ()) if finding["serious"])
