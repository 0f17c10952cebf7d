"""The flags of `sts`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from starbucks_retrieval.cli import flag
from starbucks_retrieval.sentences import SentenceArguments
from starbucks_retrieval.sts.sets import SETS


@dataclasses.dataclass
class StsArguments(SentenceArguments):
    """Semantic textual similarity."""

    data: list[str] = flag(
        help="sets of scored pairs: names, files, hub names, or NAME=file", factory=lambda: list(SETS)
    )
    split: str | None = flag(None, "split of the sets that have splits (default: test)")
    measure: Literal["spearman", "pearson"] = flag("spearman", "which correlation")
    output: str | None = flag(None, "JSON to write: figures and what made them")
    keep_pairs: bool = flag(False, "write every pair's cosine and score, too, for paired tests of significance")
    baseline: str | None = flag(None, "result file of another model: adds a table of the differences from it")
    test: Literal["auto", "williams", "bootstrap", "fisher"] = flag(
        "auto", "against the baseline: auto is williams where both keep their pairs, else fisher (published)"
    )
    correction: Literal["holm", "bonferroni", "none"] = flag("none", "of p over all sets and sizes compared")
