"""What a report warns of: findings of the preflight in its files, and methods that were not trained alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import training_settings

_SHOWN = 3  # sizes that the sentence about a finding names


_BUDGET = "rows"


def unlike_training(settings: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[list[str], list[str]]:
    """Compare the training of methods, which is to be alike in everything but the method.

    Args:
        settings: (method, what `training_settings` returned) of each model.

    Returns:
        A sentence for each difference of negatives, data or lengths, and one about different numbers of rows. Models of
        which nothing is known are not compared.

    Example:
        >>> warnings, notes = unlike_training([("A", {"false_negatives": "keep"}), ("B", {"false_negatives": "mask"})])
        >>> warnings, notes
        (['Not like with like: --false_negatives is keep for A and mask for B.'], [])
    """
    warnings, notes = [], []
    for name in dict.fromkeys(name for _, known in settings for name in known):
        labels: dict[str, list[str]] = {}
        for label, known in settings:
            if name in known:
                labels.setdefault(_value_text(known[name]), []).append(label)
        if len(labels) < 2:
            continue
        parts = [f"{value} for {', '.join(dict.fromkeys(found))}" for value, found in labels.items()]
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}"
        if name == _BUDGET:
            notes.append(f"Rows of training data that a process read: {listed}.")
        else:
            warnings.append(f"Not like with like: --{name} is {listed}.")
    return warnings, notes


def _value_text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def trained_models(models: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings of training of `LABEL=folder`.

    Args:
        models: Each `LABEL=folder`.

    Raises:
        UserError: A word names no method, or a folder has no record of its training.
    """
    found = []
    for word in models:
        label, equals, folder = word.partition("=")
        settings = training_settings(folder) if equals and label else {}
        if not settings:
            raise UserError(
                f"--models {word}: no training.json of labelled training"
                if equals
                else f"--models {word} names no method",
                "write LABEL=folder, the folder of a model that starbucks train wrote",
            )
        found.append((label, settings))
    return found


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
