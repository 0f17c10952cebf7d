"""Score run files side by side: read, preflight, measure, write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate.preflight import Finding, preflight
from starbucks_retrieval.evaluate.results import Evaluation, RunResult, write_per_query
from starbucks_retrieval.measures import parse_measures, remove_identical_ids, score
from starbucks_retrieval.provenance import describe, file_digest, write_json
from starbucks_retrieval.texts.qrels import read_qrels
from starbucks_retrieval.texts.queries import open_queries
from starbucks_retrieval.texts.runs import read_run

log = logging.getLogger(__name__)

MEASURES = "RR@10 nDCG@10 R@1000"
_ENDINGS = (".gz", ".trec", ".run", ".txt")


def evaluate(
    runs: str | Path | Sequence[str | Path],
    qrels: str,
    measures: str | Sequence[str] = MEASURES,
    *,
    split: str = "test",
    queries: str | None = None,
    remove_identical_ids: bool = False,
    per_query: str | Path | None = None,
    output: str | Path | None = None,
    strict: bool = False,
) -> Evaluation:
    """Score run files against `qrels`, over every judged query, after a preflight whose findings are logged.

    `measures` are ir-measures' names. `queries`, the queries that were searched, lets the preflight tell a run cut off
    at its end when the qrels have another order; a BEIR folder holds them itself. `remove_identical_ids` drops results
    that bear their query's own id before anything else. `per_query` (tsv) and `output` (JSON: figures, findings,
    provenance) are files to write.

    Raises UserError for bad files and names, for a run that shares no query with the qrels, and, when `strict`, for
    any serious finding, before anything is written.
    """
    measures = measures if isinstance(measures, str) else " ".join(measures)
    parsed = parse_measures(measures)
    for target in (per_query, output):
        _check_target(target)
    given = [runs] if isinstance(runs, str | Path) else runs
    paths = list(dict.fromkeys(str(Path(path).expanduser()) for path in given))
    if not paths:
        raise UserError("no run is given", "name one or more run files with --run")
    judged = read_qrels(qrels, split=split)
    order = _query_order(queries, qrels)
    results = []
    for path, name in zip(paths, _names(paths)):
        run, removed = _read(path, remove_identical_ids)
        if not run.keys() & judged.keys():
            theirs, ours = next(iter(run), None), next(iter(judged), None)
            raise UserError(
                f"{path} and {qrels} share no query (say {theirs!r} and {ours!r})",
                "use the qrels of the queries that were searched; --split names another part of them",
            )
        findings = preflight(run, judged, order)
        _report(name, findings)
        results.append(RunResult(name, path, file_digest(path), score(judged, run, parsed), findings, removed))
    names = [str(measure) for measure in parsed]
    asked = {"runs": paths, "qrels": str(qrels), "split": split, "measures": names}
    provenance = describe({**asked, "remove_identical_ids": remove_identical_ids})
    evaluation = Evaluation(names, len(judged), results, provenance)
    serious = sum(len(result.serious) for result in results)
    if strict and serious:
        raise UserError(f"serious findings in the preflight: {serious}", "mend what they name, or leave out --strict")
    if per_query:
        write_per_query(per_query, evaluation)
    if output:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_json(output, evaluation.figures())
    return evaluation


def _read(path: str, drop_identical: bool) -> tuple[dict[str, dict[str, float]], int]:
    run = read_run(path)
    if not drop_identical:
        return run, 0
    kept = remove_identical_ids(run)
    return kept, sum(map(len, run.values())) - sum(map(len, kept.values()))


def _query_order(queries: str | None, qrels: str) -> list[str] | None:
    if queries is None and (Path(qrels) / "queries.jsonl").is_file():
        queries = qrels
    return None if queries is None else [query.query_id for query in open_queries(queries)]


def _names(paths: Sequence[str]) -> list[str]:
    """File names without their endings; where two would be the same, the paths themselves."""
    names = []
    for path in paths:
        name = Path(path).name
        while name.endswith(_ENDINGS) and Path(name).suffix:
            name = Path(name).stem
        names.append(name)
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names)]


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
