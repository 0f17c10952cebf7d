"""Score run files side by side: read, preflight, measure, compare, write."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from starbucks_retrieval.data.run_reader import open_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.comparison import check_choices, compare
from starbucks_retrieval.evaluate.inputs import (
    TREC_MEASURES,
    JudgedSet,
    RunPath,
    open_sets,
    run_names,
    run_paths,
    sets_of,
)
from starbucks_retrieval.evaluate.preflight import Finding, beside, preflight, preflight_qrels
from starbucks_retrieval.evaluate.results import Evaluation, RunResult, SetResult, write_per_query
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.metrics.measures import is_mean, parse_measures, remove_identical_ids, score
from starbucks_retrieval.metrics.results import sets_of_parts, write_results
from starbucks_retrieval.metrics.run_labels import RunIdentity, names_of_set, run_labels, titles
from starbucks_retrieval.metrics.significance import Correction, Test
from starbucks_retrieval.provenance import describe

log = logging.getLogger(__name__)


def evaluate(
    runs: str | Path | Sequence[str | Path],
    qrels: str | Path | Sequence[str | Path],
    measures: str | Sequence[str] | None = None,
    *,
    split: str = "test",
    queries: str | Sequence[str] | None = None,
    remove_identical_ids: bool = False,
    label: str | Sequence[str] | None = None,
    without: Sequence[str] = (),
    baseline: str | None = None,
    test: Test = "t",
    correction: Correction = "holm",
    alpha: float = 0.05,
    seed: int = 42,
    per_query: str | Path | None = None,
    output: str | Path | None = None,
    strict: bool = False,
) -> Evaluation:
    """Score run files against one or more sets of judgements, after a preflight whose findings are logged.

    Every judged query counts. `qrels` are files, BEIR folders, `ir:` ids or short names; a run is scored under each
    with which it shares a query, and `name=path` on both sides ties it to one. `measures` are ir-measures' names;
    by default RR@10, nDCG@10 and R@1000, of TREC's DL19 and DL20 also RR(rel=2)@10 and R(rel=2)@1000.
    `queries`, the queries that were searched, lets the preflight tell a run cut off at its end when the qrels have
    another order; a BEIR folder holds them itself. `remove_identical_ids` drops results that bear their query's own id
    before anything else. `label` is how tables call the runs' method, one for all or one for each; `without` names
    sets that a further average leaves out.

    `baseline`, a label or run, is what all others are tested against, query by query: `test`, `correction` over all
    comparisons of one measure, `alpha` and, for tests that draw, `seed`. `per_query` (tsv) and `output` (a result file
    with findings and provenance) are files to write.

    Raises UserError for bad files and names, for a run that shares no query with any qrels, and, when `strict`, for
    any serious finding, before anything is written.
    """
    asked = None if measures is None else parse_measures(measures if isinstance(measures, str) else " ".join(measures))
    check_choices(test, correction, alpha)
    for target in (per_query, output):
        _check_target(target)
    sets = open_sets(qrels, split, queries)
    paths = run_paths(runs, sets)
    if label and not isinstance(label, str) and len(label) not in (1, len(paths)):  # before anything is scored
        raise UserError(f"{len(label)} labels for {len(paths)} runs", "give one --label for all runs or one for each")
    named = [judged.name for judged in sets]
    strangers = [name for name in without if name not in {*named, *sets_of_parts(named)}]
    if strangers:
        raise UserError(
            f"--without {strangers[0]}: no set is called so",
            f"the sets are {', '.join(named)}",
        )
    judged_sets = []
    for judged in sets:
        findings = preflight_qrels(judged.qrels)
        _report(judged.name, findings)
        judged_sets.append(SetResult(judged.name, judged.source, len(judged.qrels), findings))
    by_set = {judged.name: asked or parse_measures(judged.measures) for judged in sets}
    taken = {measure for some in by_set.values() for measure in some}
    parsed = asked or [measure for measure in parse_measures(TREC_MEASURES) if measure in taken]
    scored, identities, orders = [], [], {}
    for path, name in zip(paths, run_names(path.path for path in paths)):
        results, identity, orders[path.path] = _score(path, name, sets, by_set, remove_identical_ids)
        scored.append(results)
        identities.append(identity)
    labels = run_labels(identities, label)
    shown = dict(zip(orders, titles(labels, [identity.size for identity in identities])))
    results = [dataclasses.replace(one, label=name) for some, name in zip(scored, labels) for one in some]
    results = [_beside_others(result, sets, orders, shown) for result in results]
    settings = {
        "runs": [path.path for path in paths],
        "qrels": [judged.source for judged in sets],
        "split": split,
        "measures": [str(measure) for measure in parsed],
        "remove_identical_ids": remove_identical_ids,
    }
    evaluation = Evaluation(
        [str(measure) for measure in parsed],
        [str(measure) for measure in parsed if is_mean(measure)],
        judged_sets,
        results,
        describe(settings),
        list(without),
        remove_identical_ids,
    )
    serious = sum(len(result.serious) for result in evaluation.runs)
    if strict and serious:
        raise UserError(f"serious findings in the preflight: {serious}", "mend what they name, or leave out --strict")
    if baseline is not None:
        tested = compare(evaluation, baseline, test, correction, alpha, seed)
        evaluation = dataclasses.replace(evaluation, tested=tested)
    if per_query:
        write_per_query(per_query, evaluation)
    if output:
        write_results(output, evaluation.results())
    return evaluation


def _score(
    path: RunPath, name: str, sets: Sequence[JudgedSet], measures: Mapping[str, list], drop_identical: bool
) -> tuple[list[RunResult], RunIdentity, list[str]]:
    """One run under each set that it belongs to, without a label; what names it; its query ids, in the file's order."""
    file = open_run(path.path)
    run, removed = file.results, 0
    if drop_identical:
        run = remove_identical_ids(file.results)
        removed = sum(map(len, file.results.values())) - sum(map(len, run.values()))
    digest = file_digest(path.path)
    found = []
    matching = sets_of(path, run, sets)
    words = tuple(word for judged in matching for word in names_of_set(judged.name))
    at = f"at {file.size} " if file.size else ""
    places = frozenset(f"{at}on {judged.name}" for judged in matching)
    for judged in matching:
        findings = preflight(run, judged.qrels, judged.order, misranked=file.misranked, scattered=file.scattered)
        scores = score(judged.qrels, run, measures[judged.name])
        place = judged.name, "", file.size
        found.append(RunResult(name, path.path, digest, *place, scores, findings, removed, file.passage_size))
    return found, RunIdentity(path.path, file.tag, file.size, words, places, file.passage_size), list(run)


def _beside_others(
    result: RunResult, sets: Sequence[JudgedSet], orders: Mapping[str, list[str]], shown: Mapping[str, str]
) -> RunResult:
    """`result` with its findings seen beside the other runs, and told. `shown`: what each path's run is called."""
    qrels = next(judged.qrels for judged in sets if judged.name == result.dataset)
    others = {shown[path]: order for path, order in orders.items() if path != result.path}
    findings = [beside(finding, set(orders[result.path]), qrels, others) for finding in result.findings]
    name = shown[result.path]
    _report(f"{name} on {result.dataset}" if len(sets) > 1 else name, findings)
    return dataclasses.replace(result, findings=findings)


def _report(name: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        word = "serious" if finding.serious else "note"
        level = logging.ERROR if finding.serious else logging.WARNING
        log.log(level, "%s: %s: %s\n  try: %s", word, name, finding.what, finding.remedy)


def _check_target(path: str | Path | None) -> None:
    """Refuse a file that cannot be written before the work is done rather than after."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder, a file is to be written", "name a file in it")
    if Path(path).parent.exists() and not Path(path).parent.is_dir():
        raise UserError(f"{Path(path).parent} is a file, not a folder", "name another place")
