"""Score runs against relevance judgements, after a preflight that checks them for defects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.run_reader import open_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.answers import MEASURES as ANSWER_MEASURES
from starbucks_retrieval.evaluate.answers import judge_by_answers, read_answers
from starbucks_retrieval.evaluate.comparison import (
    BaselineComparisons,
    RunComparison,
    RunResult,
    compare,
)
from starbucks_retrieval.evaluate.in_memory import evaluate_run
from starbucks_retrieval.evaluate.inputs import (
    TREC_MEASURES,
    ComparisonArguments,
    EvaluateArguments,
    JudgedSet,
    RunPath,
    log_findings,
    matching_sets,
    open_sets,
    run_names,
    run_paths,
    set_name,
)
from starbucks_retrieval.evaluate.preflight import Finding, preflight, preflight_qrels, recognise_truncation
from starbucks_retrieval.evaluate.results import Evaluation, SetResult, write_per_query
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.measures import is_mean, parse_measures, remove_identical_ids, score
from starbucks_retrieval.metrics.results import sets_of_parts, write_results
from starbucks_retrieval.metrics.run_labels import RunIdentity, names_of_set, run_labels, run_titles
from starbucks_retrieval.provenance import describe

__all__ = [
    "BaselineComparisons",
    "ComparisonArguments",
    "EvaluateArguments",
    "Evaluation",
    "Finding",
    "RunComparison",
    "RunResult",
    "SetResult",
    "evaluate",
    "evaluate_run",
    "preflight",
    "preflight_qrels",
]
__dir__ = public_names(__name__)


def evaluate(arguments: EvaluateArguments, comparison: ComparisonArguments | None = None, seed: int = 42) -> Evaluation:
    """Score run files against one or more sets of judgements, after a preflight whose findings are logged.

    Every judged query counts; a query without results scores 0. A run is scored on each set with which it shares a query;
    `name=path` ties it to the set of that name. With `answers` instead of judgements, a passage of `corpus` is relevant
    if it contains an answer, and the default measures are Success@20 and Success@100, DPR's top-k accuracy.

    Args:
        arguments: The flags of `starbucks evaluate`: runs, judgements, measures and the files to write.
        comparison: The baseline that all other runs are tested against, query by query, and how.
        seed: Seed of the tests that resample.

    Raises:
        UserError: A bad file or name, a run that shares no query with any set, or a serious finding with `strict`;
            nothing is written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "qrels.txt").write_text("q1 0 d1 1\\nq2 0 d2 1\\n")
        ...     _ = Path(folder, "bm25.trec").write_text("q1 Q0 d1 1 9.5 bm25\\nq2 Q0 d3 1 9 bm25\\nq2 Q0 d2 2 8 bm25\\n")
        ...     arguments = EvaluateArguments(f"{folder}/bm25.trec", f"{folder}/qrels.txt", measures="RR@10 P@1")
        ...     print(evaluate(arguments).table())
        run    RR@10     P@1
        bm25  0.7500  0.5000
    """
    if not isinstance(arguments, EvaluateArguments):
        hint = "call evaluate(EvaluateArguments(run, qrels)), or evaluate_run(run, qrels, measures) for one run"
        raise UserError(f"evaluate takes EvaluateArguments, not a {type(arguments).__name__}", hint)
    comparison = comparison or ComparisonArguments()
    comparison.check()
    given_measures = None if arguments.measures is None else parse_measures(" ".join(arguments.measures))
    for target in (arguments.per_query, arguments.output):
        _check_target(target)
    if arguments.answers is not None:
        given_measures = given_measures or parse_measures(ANSWER_MEASURES)
    sets = _judgements(arguments, given_measures)
    paths = run_paths(arguments.run, sets)
    _check_names(paths, sets, arguments)
    judged_sets = [SetResult(one.name, one.source, len(one.qrels), preflight_qrels(one.qrels)) for one in sets]
    for judged_set in judged_sets:
        log_findings(judged_set.name, judged_set.findings)
    by_set = {judged.name: given_measures or parse_measures(judged.measures) for judged in sets}
    used = set(chain.from_iterable(by_set.values()))
    parsed = given_measures or [measure for measure in parse_measures(TREC_MEASURES) if measure in used]
    results = _score_runs(paths, sets, by_set, arguments)
    settings = {
        "runs": [path.path for path in paths],
        "qrels": [judged.source for judged in sets],
        "split": arguments.split,
        "measures": [str(measure) for measure in parsed],
        "remove_identical_ids": arguments.remove_identical_ids,
    }
    evaluation = Evaluation(
        [str(measure) for measure in parsed],
        [str(measure) for measure in parsed if is_mean(measure)],
        judged_sets,
        results,
        describe(settings),
        arguments.without or [],
        arguments.remove_identical_ids,
    )
    serious = sum(len(result.serious) for result in evaluation.runs)
    if arguments.strict and serious:
        raise UserError(f"serious findings in the preflight: {serious}", "fix what they name, or leave out --strict")
    if comparison.baseline is not None:
        comparisons = compare(evaluation.rows, evaluation.means, comparison, seed)
        evaluation = dataclasses.replace(evaluation, comparisons=comparisons)
    if arguments.per_query:
        write_per_query(arguments.per_query, evaluation)
    if arguments.output:
        write_results(arguments.output, evaluation.results())
    return evaluation


def _judgements(arguments: EvaluateArguments, measures: Sequence[Any] | None) -> list[JudgedSet]:
    """Read the judgements, or judge the results of the runs by the answers that the passages contain."""
    answers, corpus = arguments.answers, arguments.corpus
    if answers is None:
        if corpus is not None:
            raise UserError("--corpus belongs to --answers", "drop it, or name the answers")
        if not arguments.qrels:
            raise UserError("--qrels is missing", "name the judgements, or --answers and --corpus; see --help")
        return open_sets(arguments.qrels, arguments.split, arguments.queries)
    if arguments.qrels:
        raise UserError("--qrels and --answers both judge the passages", "give one of them")
    if corpus is None:
        raise UserError("--answers needs the texts of the passages", "name the collection that was searched: --corpus")
    known = read_answers(answers)
    deepest = max(measure.params.get("cutoff", math.inf) for measure in measures or ())
    runs = (open_run(path.path).results for path in run_paths(arguments.run, []))
    depth = None if deepest == math.inf else int(deepest)
    found = judge_by_answers(runs, known, corpus, depth)
    return [JudgedSet(set_name(answers), answers, found, None)]


def _check_names(paths: Sequence[RunPath], sets: Sequence[JudgedSet], arguments: EvaluateArguments) -> None:
    """Raise UserError for a wrong number of labels or an unknown set, before anything is scored."""
    labels = arguments.label or []
    if labels and len(labels) not in (1, len(paths)):
        raise UserError(f"{len(labels)} labels for {len(paths)} runs", "give one --label for all runs or one for each")
    named = [judged.name for judged in sets]
    unknown = [name for name in arguments.without or () if name not in {*named, *sets_of_parts(named)}]
    if unknown:
        raise UserError(f"--without {unknown[0]}: no set has this name", f"the sets are {', '.join(named)}")


def _score_runs(
    paths: Sequence[RunPath],
    sets: Sequence[JudgedSet],
    measures: Mapping[str, list],
    arguments: EvaluateArguments,
) -> list[RunResult]:
    """Score every run on its sets, label the results, and log their findings."""
    scored, identities, orders = [], [], {}
    for path, name in zip(paths, run_names(path.path for path in paths)):
        results, identity, orders[path.path] = _score(path, name, sets, measures, arguments.remove_identical_ids)
        scored.append(results)
        identities.append(identity)
    labels = run_labels(identities, arguments.label)
    shown = dict(zip(orders, run_titles(labels, [identity.size for identity in identities])))
    results = [dataclasses.replace(one, label=name) for found, name in zip(scored, labels) for one in found]
    return [_with_other_runs(result, sets, orders, shown) for result in results]


def _score(
    path: RunPath, name: str, sets: Sequence[JudgedSet], measures: Mapping[str, list], drop_identical: bool
) -> tuple[list[RunResult], RunIdentity, list[str]]:
    """Score one run on its sets. Return its results, without a label, its identity, and its query ids in file order."""
    file = open_run(path.path)
    run, removed = file.results, 0
    if drop_identical:
        run = remove_identical_ids(file.results)
        removed = sum(map(len, file.results.values())) - sum(map(len, run.values()))
    digest = file_digest(path.path)
    found = []
    matching = matching_sets(path, run, sets)
    words = tuple(word for judged in matching for word in names_of_set(judged.name))
    at_size = f"at {file.size} " if file.size else ""
    cells = frozenset(f"{at_size}on {judged.name}" for judged in matching)
    for judged in matching:
        findings = preflight(run, judged.qrels, judged.order, misranked=file.misranked, scattered=file.scattered)
        scores = score(judged.qrels, run, measures[judged.name])
        found.append(
            RunResult(name, path.path, digest, judged.name, "", file.size, scores, findings, removed, file.passage_size)
        )
    return found, RunIdentity(path.path, file.tag, file.size, words, cells, file.passage_size), list(run)


def _with_other_runs(
    result: RunResult, sets: Sequence[JudgedSet], orders: Mapping[str, list[str]], shown: Mapping[str, str]
) -> RunResult:
    """Refine the findings about a run by the query order of the other runs, and log them. `shown`: path → title."""
    qrels = next(judged.qrels for judged in sets if judged.name == result.dataset)
    others = {shown[path]: order for path, order in orders.items() if path != result.path}
    findings = [recognise_truncation(finding, set(orders[result.path]), qrels, others) for finding in result.findings]
    name = shown[result.path]
    log_findings(f"{name} on {result.dataset}" if len(sets) > 1 else name, findings)
    return dataclasses.replace(result, findings=findings)


def _check_target(path: str | Path | None) -> None:
    """Raise UserError for a file that cannot be written, before the work is done."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder, not a file", "name a file in it")
    if Path(path).parent.exists() and not Path(path).parent.is_dir():
        raise UserError(f"{Path(path).parent} is a file, not a folder", "name a path in a folder")
