"""Open sets of judgements, find the sets that a run is scored on, and log what is wrong with them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from starbucks_retrieval.cli import as_flag_values, flag
from starbucks_retrieval.data import FORMATS, open_queries, read_qrels
from starbucks_retrieval.data.ir_datasets import expand_pattern
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.preflight import Finding
from starbucks_retrieval.metrics.equivalence import check_margin
from starbucks_retrieval.metrics.measures import Qrels, Run
from starbucks_retrieval.metrics.results import dataset_name
from starbucks_retrieval.metrics.run_labels import ENDINGS, JOINTS, strip_endings
from starbucks_retrieval.metrics.significance import Correction, Test

# `scifact=runs/bm25.trec`; the first part holds no slash, so that runs/lr=0.1/bm25.trec is a path.
_NAMED = re.compile(r"([^/\\=\s]+)=(.+)")
MEASURES = "RR@10 nDCG@10 R@1000"
TREC_MEASURES = "RR@10 RR(rel=2)@10 nDCG@10 R@1000 R(rel=2)@1000"
_TREC = re.compile(r"(?<![a-z0-9])(trec-)?dl-?(20)?(19|20)(?![0-9])")  # dl19, dl20-passage, …/trec-dl-2019/judged
log = logging.getLogger("starbucks_retrieval.evaluate")


@dataclass(frozen=True)
class JudgedSet:
    """A set of judgements.

    Attributes:
        name: Its name in tables and in `name=path`.
        source: Where it was read from.
        qrels: query id → docid → grade.
        order: The ids of the queries that were searched, in their order; None if unknown.
    """

    name: str
    source: str
    qrels: Qrels
    order: list[str] | None

    @property
    def measures(self) -> str:
        """The default measures; for TREC's passage tracks also those that count grades from 2 on.

        Grade 1 of these tracks means "on the topic, but no answer": TREC's own recall and reciprocal rank ignore it.
        """
        graded = any(grade > 1 for grades in self.qrels.values() for grade in grades.values())
        return TREC_MEASURES if graded and _TREC.search(self.name.lower()) else MEASURES


@dataclass(frozen=True)
class RunPath:
    """A run file.

    Attributes:
        path: The file.
        tied: The set that it is scored on; None for every set with which it shares a query.
    """

    path: str
    tied: str | None


def open_sets(qrels: Sequence[str], split: str, queries: Sequence[str] | None) -> list[JudgedSet]:
    """Read sets of judgements.

    Args:
        qrels: Sources of judgements, each with or without `name=` before it.
        split: Split of BEIR folders and short names.
        queries: Sources of the queries that were searched; by default `queries.jsonl` of a BEIR folder.

    Raises:
        UserError: Two sets have one name, or a source cannot be read.
    """
    parts = [(name, one) for name, source in map(_split, dict.fromkeys(qrels)) for one in expand_pattern(source)]
    if not parts:
        raise UserError("no judgements are given", "name a file, a BEIR folder or a short name with --qrels")
    names = [name or set_name(source) for name, source in parts]
    # Two files of one name get their paths as names; given names have to differ.
    names = [
        source if names.count(name) > 1 and chosen is None else name for name, (chosen, source) in zip(names, parts)
    ]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"two sets of judgements are called {twice[0]}", "give each its own name: --qrels name=path")
    sets = []
    for name, (_, source) in zip(names, parts):
        searched = queries
        if searched is None and (Path(source) / "queries.jsonl").is_file():
            searched = [source]
        order = None if searched is None else [query.query_id for one in searched for query in open_queries(one)]
        sets.append(JudgedSet(name, source, read_qrels(source, split=split), order))
    return sets


def run_paths(runs: Sequence[str], sets: Sequence[JudgedSet]) -> list[RunPath]:
    """Return the given runs, each once.

    Args:
        runs: Run files, each with or without `name=` before it, which ties it to a set of judgements.
        sets: The sets that a name can refer to.

    Raises:
        UserError: No run is given, or a run is tied to an unknown set.

    Example:
        >>> run_paths(["bm25.trec", "bm25.trec"], [])
        [RunPath(path='bm25.trec', tied=None)]
    """
    found = []
    for one in dict.fromkeys(runs):
        name, path = _split(one)
        if name is not None and name not in {known.name for known in sets}:
            raise UserError(
                f"{one}: no judgements are called {name}, only {', '.join(known.name for known in sets)}",
                "name=path ties a run to the --qrels of that name; --label sets the name of a run in tables",
            )
        found.append(RunPath(str(Path(path).expanduser()), name))
    if not found:
        raise UserError("no run is given", "name one or more run files with --run")
    return list(dict.fromkeys(found))


def matching_sets(path: RunPath, run: Run, sets: Sequence[JudgedSet]) -> list[JudgedSet]:
    """Return the sets to score a run on: the set it is tied to, or all sets with which it shares a query.

    Args:
        path: The run file and the set it is tied to.
        run: Its scores by query id and docid.
        sets: All sets of judgements.

    Returns:
        At least one set, in the order of `sets`.

    Raises:
        UserError: There is none, or two sets judge different queries under the same ids. Collections that number their
            queries from 1 would match each other's runs, and one of the figures would be nonsense.
    """
    within = [known for known in sets if path.tied in (None, known.name)]
    found = [known for known in within if run.keys() & known.qrels.keys()]
    if not found:
        run_id, qrels_id = next(iter(run), None), next(iter(within[0].qrels), None)
        others = ", nor with other sets" if len(within) > 1 else ""
        raise UserError(
            f"{path.path} and {within[0].source} share no query (the first are {run_id!r} and {qrels_id!r}){others}",
            "use the qrels of the queries that were searched; --split names another part of them",
        )
    for i, first in enumerate(found):
        for second in found[i + 1 :]:
            both = [query_id for query_id in first.qrels if query_id in second.qrels and query_id in run]
            # A query judged twice has documents in common; two queries with the same number hardly ever do.
            alike = sum(not first.qrels[query_id].keys().isdisjoint(second.qrels[query_id]) for query_id in both)
            if 2 * alike < len(both):
                raise UserError(
                    f"{path.path}: query {both[0]!r} and {len(both) - 1} others are in {first.name} and in "
                    f"{second.name}, with judgements of different documents",
                    f"say whose run it is: --run {first.name}={path.path} --qrels {first.name}={first.source}",
                )
    return found


def run_names(paths: Iterable[str]) -> list[str]:
    """Return file names without their endings; the paths where two names are equal.

    Example:
        >>> run_names(["runs/bm25.trec", "runs/dense.trec"]), run_names(["a/run.trec", "b/run.trec"])
        (['bm25', 'dense'], ['a/run.trec', 'b/run.trec'])
    """
    paths = list(paths)
    names = [strip_endings(Path(path).name) for path in paths]
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names)]


def _split(word: str) -> tuple[str | None, str]:
    """Split `name=path`, unless a file with this name exists."""
    found = _NAMED.fullmatch(word)
    if found is None or Path(word).expanduser().exists():
        return None, word
    return found[1], found[2]


def set_name(source: str) -> str:
    """Return the name of judgements: a folder's name, a file's name without `qrels` and endings, or an id.

    Args:
        source: A folder, a file or an `ir:` id. A file in a folder called `qrels` is named after the folder above that.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return dataset_name(path)
    if not path.is_file():
        return source.removeprefix("ir:")
    if path.absolute().parent.name == "qrels":
        return dataset_name(path.absolute().parent.parent)
    name = strip_endings(path.name, (*ENDINGS, *FORMATS, ".qrels"))
    return re.sub(rf"^qrels?[{JOINTS}]+|[{JOINTS}]+qrels?$", "", name) or name


def log_findings(name: str, findings: Sequence[Finding]) -> None:
    """Log findings: serious ones as errors, others as warnings.

    Args:
        name: The run or the judgements that they are about.
        findings: What the preflight found.
    """
    for finding in findings:
        word = "serious" if finding.serious else "note"
        level = logging.ERROR if finding.serious else logging.WARNING
        log.log(level, "%s: %s: %s\n  try: %s", word, name, finding.what, finding.remedy)


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
