"""Verdicts about the claims of the papers, from comparisons that the file of a table declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from starbucks_retrieval.metrics.equivalence import Difference, adjust_equivalence, verdict
from starbucks_retrieval.metrics.score_tests import ScoreTest, SeedScore, compare_scores
from starbucks_retrieval.metrics.significance import adjust
from starbucks_retrieval.reproduce.comparisons import Pair, make_pair
from starbucks_retrieval.reproduce.plan import Plan
from starbucks_retrieval.reproduce.results import Key, RowScores
from starbucks_retrieval.reproduce.scaling import rescale
from starbucks_retrieval.reproduce.schema import Claim
from starbucks_retrieval.sizes import Size

CONFIRMED: Literal["confirmed"] = "confirmed"
NOT_CONFIRMED: Literal["not confirmed"] = "not confirmed"
NOT_TESTABLE: Literal["not testable here"] = "not testable here"
_ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """The verdict of a table about a claim.

    Attributes:
        claim: The claim.
        verdict: Whether the table confirms it.
        because: The reason in one sentence.
    """

    claim: Claim
    verdict: Literal["confirmed", "not confirmed", "not testable here"]
    because: str

    def __str__(self) -> str:
        return f"({self.claim.id}) {self.claim.says}: {self.verdict}. {self.because}"


@dataclass(frozen=True)
class _Differences:
    """The scores that two rows have in common, and their p-values after Holm's correction."""

    pairs: list[Pair]
    p_values: list[float]

    @property
    def values(self) -> list[float]:
        """The differences."""
        return [pair.one.value - pair.other.value for pair in self.pairs]

    @property
    def mean(self) -> float:
        """Their mean."""
        return math.fsum(self.values) / len(self.values)

    def count(self, sign: int) -> int:
        """Return how many differences of a sign are significant."""
        return sum(p < _ALPHA and value * sign > 0 for value, p in zip(self.values, self.p_values, strict=True))

    def __str__(self) -> str:
        return (
            f"{self.mean:+.4f} on average over {len(self.pairs)} scores, of which {self.count(1)} are significantly "
            f"higher and {self.count(-1)} lower (p < {_ALPHA}, Holm's correction)"
        )


def judge(plan: Plan, scores: Mapping[str, RowScores], shown: Sequence[tuple[str, str]]) -> list[Verdict]:
    """Return the verdict about each claim of a table. Tests are over queries, or pairs of sentences, and seeds.

    above is confirmed if the mean difference is positive and more scores are significantly higher than lower; on_par if
    two one-sided tests with Holm's correction find every set within the margin (values of queries are averaged over the
    sizes; correlations are tested at each size); gain if `above` is confirmed at one part of the table, and the mean
    difference is larger there than at the other.

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
        return _judge_equivalence(claim, found)
    holds = found.mean > 0 and found.count(1) > found.count(-1)
    return Verdict(claim, CONFIRMED if holds else NOT_CONFIRMED, told)


def _judge_equivalence(claim: Claim, found: _Differences) -> Verdict:
    by_set: dict[str, list[Pair]] = {}
    for pair in found.pairs:
        at = pair.one.size if pair.is_correlation else pair.one.measure
        by_set.setdefault(f"{pair.one.dataset} {at}", []).append(pair)
    tests: list[tuple[str, Difference]] = []
    untested: list[str] = []
    for name, pairs in by_set.items():
        test = pairs[0].test if len(pairs) == 1 else _test_means(pairs)
        if isinstance(test, str):
            untested.append(f"{name} is not tested: {test}.")
        else:
            tests.append((name, test.difference))
    if not tests:
        return Verdict(claim, NOT_TESTABLE, untested[0])
    adjusted = adjust_equivalence([test.equivalence(claim.margin) for _, test in tests], "holm")
    equal = sum(verdict(one) == "equivalent" for one in adjusted)
    shown = ", ".join(
        f"{name} {test.value:+.4f} [{low:+.4f}, {high:+.4f}]"
        for (name, test), (low, high) in ((each, each[1].interval()) for each in tests)
    )
    told = (
        f"{claim.row} less {claim.than}, with 95 % intervals: {shown}; {equal} of {len(tests)} are within ±{claim.margin:g} "
        + " ".join(["(two one-sided tests, Holm's correction).", *untested])
    )
    return Verdict(claim, CONFIRMED if equal == len(tests) else NOT_CONFIRMED, told)


def _test_means(pairs: Sequence[Pair]) -> ScoreTest | str:
    """Test the means over the sizes of the values of queries."""
    ours, theirs = _mean_scores([pair.ours for pair in pairs]), _mean_scores([pair.theirs for pair in pairs])
    return compare_scores(pairs[0].one.measure, ours, theirs)


def _mean_scores(sizes: Sequence[Sequence[SeedScore]]) -> list[SeedScore]:
    """Return the mean over the sizes of the score of each seed, and of the values of its queries."""
    means = []
    for scores in zip(*sizes):
        values = [score.values for score in scores if score.values is not None]
        mean = np.mean(values, axis=0) if len(values) == len(scores) else None
        means.append(replace(scores[0], value=float(np.mean([score.value for score in scores])), values=mean))
    return means


def _judge_gain(claim: Claim, plan: Plan, scores: Mapping[str, RowScores], shown: Sequence[tuple[str, str]]) -> Verdict:
    parts = []
    for part in (claim.at, claim.against):
        found = _differences(claim, plan, scores, shown, part.get("sets", claim.sets), part.get("sizes", claim.sizes))
        if isinstance(found, str):
            return Verdict(claim, NOT_TESTABLE, found)
        parts.append(found)
    first, second = parts
    told = f"{claim.row} less {claim.than} at {_name(claim.at)}: {first}; at {_name(claim.against)}: {second}."
    holds = first.mean > max(0, second.mean) and first.count(1) > first.count(-1)
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
    paper, full = plan.table.full, plan.scale.full
    chosen: list[Size] = [*plan.sizes]
    if sizes:
        scaled = (rescale(Size.parse(size), paper, full) for size in sizes)
        chosen = [size for size in scaled if size is not None]
    deep = None
    if claim.passage_layer is not None:
        deep = rescale(Size(claim.passage_layer, paper.dim), paper, full)
        if deep is None:
            return f"No layer of the backbone stands for layer {claim.passage_layer} of {paper}."
    keys: list[Key] = [
        (name, measure, size, deep and Size(deep.layer, size.dim)) for name, measure in wanted for size in chosen
    ]
    pairs = [make_pair(plan.table, claim.row, claim.than, scores, key) for key in keys if key in ours and key in theirs]
    pairs = [pair for pair in pairs if math.isfinite(pair.one.value) and math.isfinite(pair.other.value)]
    if not pairs:
        return f"{claim.row} and {claim.than} have no score in common at {_name({'sets': sets, 'sizes': sizes})}."
    reasons = [pair.test for pair in pairs if isinstance(pair.test, str)]
    if len(reasons) == len(pairs):
        return f"{claim.row} less {claim.than} cannot be tested: {reasons[0]}."
    return _Differences(pairs, adjust([pair.p_value for pair in pairs], "holm"))


def _name(part: Mapping[Any, Sequence[str]]) -> str:
    return " and ".join(", ".join(words) for words in part.values() if words) or "all sizes and sets"
