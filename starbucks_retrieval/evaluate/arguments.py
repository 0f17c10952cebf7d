"""Arguments of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.equivalence import check_margin
from starbucks_retrieval.metrics.significance import Correction, Test

Family = Literal["measure", "table"]


@dataclass
class EvaluateArguments:
    """Runs, judgements and measures

    In Python, lists may be single strings, and files may be Paths.
    """

    run: list[str] = flag(
        None, "TREC run files, plain or .gz; name=path scores one on the --qrels name=… only", required=True
    )
    qrels: list[str] | None = flag(
        None,
        "relevance judgements: files (TREC, or with a header), BEIR folders, short names, ir:… (required without --answers)",
    )
    answers: str | None = flag(
        None,
        "answers of questions instead: a passage that contains one is relevant (Natural Questions, as DPR)",
        rare=True,
    )
    corpus: str | None = flag(None, "with --answers: the passages that were searched", rare=True)
    split: str = flag("test", "split of a BEIR folder or short name")
    queries: list[str] | None = flag(
        None, "the queries that were searched: their order shows whether a run was truncated"
    )
    measures: list[str] | None = flag(
        None,
        "names of ir-measures, linear gain, trec_eval's order (default: RR@10 nDCG@10 R@1000; on dl19 and dl20 also "
        "RR(rel=2)@10 R(rel=2)@1000)",
    )
    remove_identical_ids: bool = flag(False, "drop results whose docid is the query's id (ArguAna, Quora)")
    label: list[str] | None = flag(
        None, "name of the runs in tables: one for all or one for each (default: the file's name)"
    )
    without: list[str] | None = flag(None, "sets to leave out of a further average", rare=True)
    per_query: str | None = flag(None, "tsv to write: run, query_id, measure, value, set")
    output: str | None = flag(None, "result file to write (JSON): figures, findings, provenance; report reads it")
    strict: bool = flag(False, "fail, and write nothing, if the preflight has a serious finding", rare=True)

    def __post_init__(self) -> None:
        if isinstance(self.run, Mapping) or isinstance(self.qrels, Mapping):
            raise UserError("evaluate takes files, not dictionaries", "call evaluate_run(run, qrels, measures)")
        as_flag_values(self)


@dataclass
class ComparisonArguments:
    """Comparison with a baseline, query by query"""

    baseline: str | None = flag(None, "run or label that all others are tested against")
    test: Test = flag("t", "paired, two-tailed test")
    correction: Correction = flag("holm", "over all comparisons of a family", rare=True)
    family: Family = flag(
        "measure", "what a correction covers: the comparisons of one measure, or of the whole table", rare=True
    )
    margin: float | None = flag(
        None, "largest difference that does not matter: also tests whether runs are equivalent to the baseline"
    )
    alpha: float = flag(0.05, "level of significance of the marks + and -", rare=True)

    def check(self) -> None:
        """Raise UserError for an unknown test, correction or family, or for a level or a margin out of range."""
        if self.margin is not None:
            check_margin(self.margin)
            if self.baseline is None:
                raise UserError("--margin needs something to be on par with", "name it with --baseline")
        for name, kind in (("test", Test), ("correction", Correction), ("family", Family)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise UserError(f"--{name} {value}: unknown {name}", f"use one of {', '.join(known)}")
        if not 0 < self.alpha < 1:
            what = f"--alpha {self.alpha} is not a level of significance"
            raise UserError(what, "use a number between 0 and 1, such as 0.05")
