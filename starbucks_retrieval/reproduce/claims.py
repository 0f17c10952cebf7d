"""Verdicts about the claims of the papers, from comparisons that the file of a table declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.metrics.significance import fisher_z, paired_test
from starbucks_retrieval.reproduce.plan import Plan
from starbucks_retrieval.reproduce.results import Key, RowScores
from starbucks_retrieval.reproduce.schema import Claim, rescale
from starbucks_retrieval.sizes import Size

CONFIRMED: Literal["confirmed"] = "confirmed"
NOT_CONFIRMED: Literal["not confirmed"] = "not confirmed"
NOT_TESTABLE: Literal["not testable here"] = "not testable here"
_ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """What a table says about a claim: confirmed, not confirmed or not testable here, and why in one sentence."""

    claim: Claim
    verdict: Literal["confirmed", "not confirmed", "not testable here"]
    because: str

    def __str__(self) -> str:
        return f"({self.claim.id}) {self.claim.says}: {self.verdict}. {self.because}"


@dataclass(frozen=True)
class _Differences:
    """The differences of two rows over the cells that both have."""

    values: list[float]
    above: int
    below: int

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def __str__(self) -> str:
        return (
            f"{self.mean:+.4f} on average over {len(self.values)} scores, of which {self.above} are significantly "
            f"higher and {self.below} lower (p < {_ALPHA})"
        )


def judge(plan: Plan, scores: Mapping[str, RowScores], shown: Sequence[tuple[str, str]]) -> list[Verdict]:
    """Return the verdict about each claim of a table.

    above is confirmed if the mean difference is positive and more scores are significantly higher than lower; on_par if
    no score is significantly lower by more than the margin and the mean difference is within it; gain if the mean
    difference is positive at one part of the table, and larger than at the other.

    Args:
        plan: The plan of the table.
        scores: The scores by row.
        shown: (set, measure) of the table's columns.
    """
    return [_judge(claim, plan, scores, shown) for claim in plan.table.claims]


def _judge(claim: Claim, plan: Plan, scores: Mapping[str, RowScores], shown: Sequence[tuple[str, str]]) -> Verdict:
    if not plan.scale.testable:
        return Verdict(claim, NOT_TESTABLE, "The data are made up.")
    for name in (claim.row, claim.than):
        if name not in scores:
            reason = plan.not_run.get((name, ""), "it was not run")
            return Verdict(claim, NOT_TESTABLE, f"{name} has no scores: {reason}.")
    if claim.kind == "gain":
        return _judge_gain(claim, plan, scores, shown)
    found = _differences(claim, plan, scores, shown, claim.sets, claim.sizes)
    if isinstance(found, str):
        return Verdict(claim, NOT_TESTABLE, found)
    told = f"{claim.row} less {claim.than}: {found}."
    if claim.kind == "on_par":
        holds = abs(found.mean) <= claim.margin and all(value >= -2 * claim.margin for value in found.values)
        told = f"{told} The margin is {claim.margin:g} on average, and twice that for a single score."
    else:
        holds = found.mean > 0 and found.above > found.below
    return Verdict(claim, CONFIRMED if holds else NOT_CONFIRMED, told)


def _judge_gain(claim: Claim, plan: Plan, scores: Mapping[str, RowScores], shown: Sequence[tuple[str, str]]) -> Verdict:
    parts = []
    for part in (claim.at, claim.against):
        found = _differences(claim, plan, scores, shown, part.get("sets", claim.sets), part.get("sizes", claim.sizes))
        if isinstance(found, str):
            return Verdict(claim, NOT_TESTABLE, found)
        parts.append(found)
    first, second = parts
    told = f"{claim.row} less {claim.than} at {_name(claim.at)}: {first}; at {_name(claim.against)}: {second}."
    holds = first.mean > 0 and first.mean > second.mean
    return Verdict(claim, CONFIRMED if holds else NOT_CONFIRMED, told)


def _differences(
    claim: Claim,
    plan: Plan,
    scores: Mapping[str, RowScores],
    shown: Sequence[tuple[str, str]],
    sets: Sequence[str],
    sizes: Sequence[str],
) -> _Differences | str:
    """Return the differences over some sets and sizes (all of the table if none is named), or why there are none."""
    ours, theirs = scores[claim.row].cells, scores[claim.than].cells
    wanted = [(name, measure) for name, measure in shown if not sets or name in sets]
    chosen: list[Size] = [*plan.sizes]
    if sizes:
        scaled = (rescale(Size.parse(size), plan.table.full, plan.scale.full) for size in sizes)
        chosen = [size for size in scaled if size is not None]
    keys: list[Key] = [(name, measure, size, None) for name, measure in wanted for size in chosen]
    pairs = [(ours[key], theirs[key]) for key in keys if key in ours and key in theirs]
    pairs = [(one, other) for one, other in pairs if math.isfinite(one.value) and math.isfinite(other.value)]
    if not pairs:
        return f"{claim.row} and {claim.than} have no score in common at {_name({'sets': sets, 'sizes': sizes})}."
    found = [(one.value - other.value, _p(one, other)) for one, other in pairs]
    return _Differences(
        [difference for difference, _ in found],
        sum(p < _ALPHA and difference > 0 for difference, p in found),
        sum(p < _ALPHA and difference < 0 for difference, p in found),
    )


def _p(one: Cell, other: Cell) -> float:
    """Return the p-value of a paired t-test over queries, of Fisher's z for correlations."""
    if one.measure in ("spearman", "pearson"):
        return fisher_z(one.value, one.count, other.value, other.count)[1]
    if not one.values or not other.values:
        return math.nan
    return paired_test(one.values, other.values).p_value


def _name(part: Mapping[Any, Sequence[str]]) -> str:
    return " and ".join(", ".join(words) for words in part.values() if words) or "all sizes and sets"
