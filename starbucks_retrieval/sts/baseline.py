"""What a model's correlations differ by from another model's, and whether that could be chance."""

from __future__ import annotations

import math
from typing import Any, Literal

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, read_results
from starbucks_retrieval.metrics.significance import NAMES, Correction, adjust, compare_correlations, fisher_z
from starbucks_retrieval.sentences import size_table
from starbucks_retrieval.sizes import Size

ALPHA = 0.05
Test = Literal["auto", "williams", "bootstrap", "fisher"]
_Chosen = Literal["williams", "bootstrap", "fisher"]


def open_baseline(path: str, test: str) -> Results:
    """Read another model's result file. Raises UserError if it is not one of STS, or lacks what `test` needs."""
    baseline = read_results(path)
    if baseline.kind != "sts":
        raise UserError(f"{path} holds results of {baseline.kind}, not of sts", "name a file that sts wrote")
    if test in ("williams", "bootstrap") and not _has_pairs(baseline):
        raise UserError(
            f"--test {test} needs every pair's cosine, which {path} does not hold",
            "measure that model again with --keep_pairs, or take --test fisher",
        )
    return baseline


def compare(
    ours: Results, baseline: Results, test: Test = "auto", correction: Correction = "none", seed: int = 42
) -> dict[str, Any]:
    """Differences of correlations, ours minus the baseline's, at every set and size of both, JSON-ready.

    auto: Williams' test of dependent correlations if both results hold their pairs, else Fisher's z, the published test,
    which takes the two for independent. The family of a correction is all that is compared. Raises UserError for
    results over other pairs, and for those that share no set and size.
    """
    for name in ours.more["data"].keys() & baseline.more["data"].keys():
        if ours.more["data"][name]["blake2b"] != baseline.more["data"][name]["blake2b"]:
            raise UserError(
                f"{name} is another set of pairs in the results of {baseline.label}", "measure both on the same files"
            )
    theirs = {(cell.dataset, cell.size, cell.measure): cell for cell in baseline.cells}
    both = [(cell, theirs[key]) for cell in ours.cells if (key := (cell.dataset, cell.size, cell.measure)) in theirs]
    both = [(one, other) for one, other in both if math.isfinite(one.value) and math.isfinite(other.value)]
    if not both:
        raise UserError(
            f"the results of {baseline.label} share no set, size and measure with these",
            "measure both at the same sizes on the same sets",
        )
    chosen: _Chosen = (
        ("williams" if _has_pairs(ours) and _has_pairs(baseline) else "fisher") if test == "auto" else test
    )
    p_values = [_p_value(one, other, chosen, ours.more.get("gold", {}), seed) for one, other in both]
    cells = [
        {"dataset": one.dataset, "size": str(one.size), "difference": one.value - other.value, "p": p, "corrected": q}
        for (one, other), p, q in zip(both, p_values, adjust(p_values, correction))
    ]
    return {"baseline": baseline.label, "test": chosen, "correction": correction, "cells": cells}


def difference_table(comparison: dict[str, Any]) -> str:
    """A row for each size, a column for each set, * where p is below 0.05; and a line that says what was tested."""
    rows = comparison["cells"]
    cells = [Cell(row["dataset"], "", Size.parse(row["size"]), row["difference"], 0) for row in rows]
    marked = {(row["dataset"], row["size"]) for row in rows if row["corrected"] < ALPHA}

    def text(cell: Cell) -> str:
        return f"{cell.value:+.4f}" + "*" * ((cell.dataset, str(cell.size)) in marked)

    corrected = "uncorrected" if comparison["correction"] == "none" else f"after {comparison['correction'].title()}"
    legend = f"minus {comparison['baseline']}; * p < {ALPHA}, {NAMES[comparison['test']]}, two-tailed, {corrected}"
    return f"{size_table(cells, text)}\n{legend}"


def _p_value(one: Cell, other: Cell, test: _Chosen, gold: dict[str, dict[str, float]], seed: int) -> float:
    if test == "fisher":
        return fisher_z(one.value, one.count, other.value, other.count)[1]
    assert one.values is not None and other.values is not None
    scores = gold[one.dataset]
    found, others = ([values[number] for number in scores] for values in (one.values, other.values))
    pearson = one.measure == "pearson"
    return compare_correlations(list(scores.values()), found, others, test, pearson=pearson, seed=seed).p_value


def _has_pairs(results: Results) -> bool:
    return "gold" in results.more and all(cell.values for cell in results.cells)
