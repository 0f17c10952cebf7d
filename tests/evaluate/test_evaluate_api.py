from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.evaluate import evaluate

QRELS = "q1 0 a 3\nq1 0 b 1\nq2 0 c 1\n"
GOOD = "q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\nq2 Q0 d 1 5.0 x\nq2 Q0 c 2 4.0 x\n"
HALF = "q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\n"


@pytest.fixture
def files(tmp_path):
    for name, text in (("qrels.txt", QRELS), ("good.trec", GOOD), ("half.trec", HALF)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_runs_side_by_side(files):
    evaluation = evaluate([files / "good.trec", files / "half.trec"], str(files / "qrels.txt"), "RR@10 nDCG@10 P@1")
    assert evaluation.table().splitlines() == [
        "run    RR@10  nDCG@10     P@1",
        "good  0.7500   0.8155  0.5000",
        "half  0.5000   0.5000  0.5000  !",
    ]
    assert [run.scores.per_query["RR@10"] for run in evaluation.runs] == [{"q1": 1, "q2": 0.5}, {"q1": 1, "q2": 0}]
    assert [[finding.kind for finding in run.findings] for run in evaluation.runs] == [[], ["truncated_run"]]
    assert evaluation.summary() == "2 runs, 2 judged queries, preflight findings: 1 (1 serious, marked ! in the table)"


def test_findings_are_logged_with_their_remedy(files, caplog):
    caplog.set_level(logging.INFO)
    evaluate([files / "half.trec"], str(files / "qrels.txt"))
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("starbucks_retrieval")]
    what, remedy = message.splitlines()
    assert what.startswith("serious: half: 1 of 2 judged queries have no results")
    assert remedy.startswith("  try: ")


def test_files_written(files):
    per_query, output = files / "new" / "per_query.tsv", files / "new" / "figures.json"
    measures = ["RR@10", "nDCG@10"]
    evaluation = evaluate([files / "good.trec"], str(files / "qrels.txt"), measures, per_query=per_query, output=output)
    header, *rows = [line.split("\t") for line in per_query.read_text().splitlines()]
    assert header == ["run", "query_id", "measure", "value"]
    assert [row[:3] for row in rows] == [["good", q, m] for m in measures for q in ("q1", "q2")]
    assert [float(row[3]) for row in rows] == [evaluation.runs[0].scores.per_query[m][q] for _, q, m, _ in rows]
    figures = json.loads(output.read_text())
    assert figures == evaluation.figures()
    (run,) = figures["runs"]
    assert (run["name"], run["measures"], run["findings"]) == ("good", evaluation.runs[0].scores.mean, [])
    assert figures["provenance"]["configuration"]["measures"] == measures
    assert sorted(path.name for path in output.parent.iterdir()) == ["figures.json", "per_query.tsv"]


def test_findings_go_into_the_json(files):
    # Every kind at once, so that none of them holds what JSON cannot.
    run = [f"q{q} Q0 {d} 1 {s} x" for q in range(1, 31) for d, s in ((f"q{q}", 9), ("hub", 8), (f"d{q}", "nan"))]
    (files / "bad.trec").write_text("\n".join([*run, "z Q0 t1 1 1 x", "z Q0 t2 1 1 x"]))
    (files / "other.txt").write_text("".join(f"q{q} 0 elsewhere 1\n" for q in range(2, 33)))
    evaluate([files / "bad.trec"], str(files / "other.txt"), output=files / "out.json")
    (result,) = json.loads((files / "out.json").read_text())["runs"]
    assert {finding["kind"] for finding in result["findings"]} == {
        "truncated_run",
        "unjudged_queries",
        "non_finite_scores",
        "tied_scores",
        "hub_documents",
        "identical_ids",
        "no_judged_documents",
    }


def test_non_finite_scores_rank_last(files):
    (files / "nan.trec").write_text("q1 Q0 z 1 nan x\nq1 Q0 y 2 inf x\nq1 Q0 a 3 -7 x\nq2 Q0 c 1 1 x\n")
    (run,) = evaluate([files / "nan.trec"], str(files / "qrels.txt"), "RR@10").runs
    assert run.scores.mean["RR@10"] == 1.0
    assert [finding.kind for finding in run.findings] == ["non_finite_scores"]


def test_identical_ids_are_removed_before_the_cut(files):
    (files / "self.trec").write_text("q1 Q0 q1 1 9 x\nq1 Q0 a 2 8 x\nq2 Q0 c 1 5 x\n")
    kept, dropped = (
        evaluate([files / "self.trec"], str(files / "qrels.txt"), "P@1", remove_identical_ids=flag).runs[0]
        for flag in (False, True)
    )
    assert (kept.scores.mean["P@1"], kept.removed) == (0.5, 0)
    assert (dropped.scores.mean["P@1"], dropped.removed) == (1.0, 1)
    assert [finding.kind for finding in kept.findings] == ["identical_ids"]
    assert dropped.findings == []


def test_a_beir_folder_tells_the_order_of_its_queries(files):
    folder = files / "beir"
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\tc\t1\nq1\ta\t1\nq3\tb\t1\n")
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "{q}", "text": "t"}}\n' for q in ("q1", "q3", "q2")))
    (files / "run.trec").write_text("q1 Q0 a 1 1 x\nq3 Q0 b 1 1 x\n")
    (run,) = evaluate([files / "run.trec"], str(folder), split="dev").runs
    assert [finding.kind for finding in run.findings] == ["truncated_run"]
    assert "last of the queries" in run.findings[0].what
    (run,) = evaluate([files / "run.trec"], str(folder / "qrels" / "dev.tsv"), queries=str(folder)).runs
    assert [finding.kind for finding in run.findings] == ["truncated_run"]
    (run,) = evaluate([files / "run.trec"], str(folder / "qrels" / "dev.tsv")).runs
    assert [finding.kind for finding in run.findings] == ["missing_queries"]


def test_a_run_that_shares_no_query_with_the_qrels_is_refused(files):
    (files / "other.trec").write_text("x9 Q0 a 1 1 x\n")
    with pytest.raises(UserError, match=r"share no query \(say 'x9' and 'q1'\)") as error:
        evaluate([files / "other.trec"], str(files / "qrels.txt"))
    assert error.value.hint


def test_strict_refuses_serious_findings_and_writes_nothing(files):
    output = files / "figures.json"
    with pytest.raises(UserError, match="serious findings in the preflight: 1"):
        evaluate([files / "half.trec"], str(files / "qrels.txt"), output=output, per_query=files / "p", strict=True)
    assert not output.exists()
    assert not (files / "p").exists()
    evaluate([files / "good.trec"], str(files / "qrels.txt"), output=output, strict=True)
    assert output.exists()


def test_a_folder_is_no_output(files):
    with pytest.raises(UserError, match="is a folder"):
        evaluate([files / "good.trec"], str(files / "qrels.txt"), output=files)


def test_names_are_file_names_unless_two_are_the_same(files):
    (files / "twin").mkdir()
    for path in ("twin/good.trec", "my.model.run.txt"):
        (files / path).write_text(GOOD)
    paths = [str(files / path) for path in ("good.trec", "twin/good.trec", "my.model.run.txt", "good.trec")]
    names = [run.name for run in evaluate(paths, str(files / "qrels.txt")).runs]
    assert names == [paths[0], paths[1], "my.model"]
    (files / ".gz").write_text(GOOD)
    assert [run.name for run in evaluate(files / ".gz", str(files / "qrels.txt")).runs] == [".gz"]


def shared(*parts: str) -> Path:
    root = Path(os.environ.get("STARBUCKS_SHARED") or Path(__file__).resolve().parents[2].parent / "shared")
    path = root.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} of the shared data is absent")
    return path


def test_recorded_scores_of_public_runs():
    folder = shared("runs")
    recorded = {}
    for line in (folder / "SCORES.txt").read_text().splitlines():
        recorded[line.split()[0].removesuffix(".trec")] = [float(v) for v in re.findall(r" (\d\.\d+)", line)]
    columns = ["nDCG@10", "RR(rel=2)@10", "AP(rel=2)", "R(rel=2)@100", "RR(rel=2)"]
    runs = sorted(folder.glob("*.trec.gz"))
    evaluation = evaluate(runs, str(shared("topics-qrels", "qrels.dl19-passage.txt")), columns)
    assert {run.name for run in evaluation.runs} == recorded.keys()
    for run in evaluation.runs:
        got = [run.scores.mean[name] for name in columns]
        # The record's RR@10 comes from a tool that orders ties by ascending docid; trec_eval's order is descending.
        tied = "tied_scores" in {finding.kind for finding in run.findings}
        for name, ours, theirs in zip(columns, got, recorded[run.name]):
            assert ours == pytest.approx(theirs, abs=0.006 if tied and name == "RR(rel=2)@10" else 5.1e-5), run.name
