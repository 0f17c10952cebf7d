"""What a preflight held against figures, as sentences: a report must not show a figure and hide what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 3  # places of one kind of finding that are named


def warnings_of(label: str, more: Mapping[str, Any]) -> list[str]:
    """Serious findings in a result file that concern `label`: of grid under `findings`, of evaluate by run and set.

    A file whose shape is another one has none.
    """
    try:
        of_runs = [*_of_runs(label, more.get("runs") or []), *_of_sets(more.get("sets") or [])]
        return [*_of_grid(label, more.get("findings") or {}), *of_runs]
    except (AttributeError, KeyError, TypeError):
        return []


def _of_grid(label: str, found: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """From {data set: {size: [kind]}}: one sentence a kind."""
    for dataset, places in found.items():
        kinds: dict[str, list[str]] = {}
        for place, names in places.items():
            for name in names:
                kinds.setdefault(name, []).append(place)
        for kind, where in kinds.items():
            where.sort(key=lambda place: [int(number) for number in re.findall(r"\d+", place)])
            more = f" and {len(where) - _SHOWN} more sizes" if len(where) > _SHOWN else ""
            yield f"{label}, {dataset} at {', '.join(where[:_SHOWN])}{more}: {kind.replace('_', ' ')}"


def _of_runs(label: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """From the runs of an evaluation, each with its findings; in a file of one method all are its."""
    several = len({run.get("label") for run in runs}) > 1
    for run in runs:
        if several and run.get("label") != label:
            continue
        at = f" at {run['size']}" if run.get("size") else ""
        for finding in run.get("findings", ()):
            if finding["serious"]:
                yield f"{label}, {run['dataset']}{at}: {finding['what']}"


def _of_sets(sets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """From the judgements of an evaluation: what is wrong with them is so for every method."""
    for judged in sets:
        for finding in judged.get("findings", ()):
            if finding["serious"]:
                yield f"{judged['name']}, its judgements: {finding['what']}"
