from __future__ import annotations

import gzip
import json
import logging
import re

import pytest
from conftest import slow_except

from starbucks_retrieval import UserError
from starbucks_retrieval.evaluate import ComparisonArguments, EvaluateArguments, evaluate
from starbucks_retrieval.metrics.results import read_results

QRELS = "q1 0 a 3\nq1 0 b 1\nq2 0 c 1\n"
GOOD = "q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\nq2 Q0 d 1 5.0 x\nq2 Q0 c 2 4.0 x\n"
HALF = "q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\n"


@pytest.fixture
def files(tmp_path):
    for name, text in (("qrels.txt", QRELS), ("good.trec", GOOD), ("half.trec", HALF)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_runs_side_by_side(files):
    evaluation = evaluate(
        EvaluateArguments(
            [files / "good.trec", files / "half.trec"], str(files / "qrels.txt"), measures="RR@10 nDCG@10 P@1"
        )
    )
    assert evaluation.table().splitlines() == [
        "run    RR@10  nDCG@10     P@1",
        "good  0.7500   0.8155  0.5000",
        "half  0.5000   0.5000  0.5000  !",
        "",
        "! half: truncated run",
    ]
    assert [run.scores.per_query["RR@10"] for run in evaluation.runs] == [{"q1": 1, "q2": 0.5}, {"q1": 1, "q2": 0}]
    assert [[finding.kind for finding in run.findings] for run in evaluation.runs] == [[], ["truncated_run"]]
    assert evaluation.summary() == (
        "2 runs, 2 judged queries, results with their query's own id kept, "
        "preflight findings: 1 (1 serious, marked ! in the table)"
    )


def test_forums_are_one_set_in_averages(files):
    """Two forums at 1 and 0, another set at 1: the average is 3/4 and not 2/3."""
    runs, qrels = [], []
    for name, docid in (("cqadupstack-gis", "a"), ("cqadupstack-tex", "z"), ("quora", "a")):
        (files / f"{name}.txt").write_text(f"{name} 0 a 1\n{name} 0 z 0\n")
        (files / f"{name}.trec").write_text(f"{name} Q0 {docid} 1 2.0 x\n")
        runs.append(f"{name}={files / name}.trec")
        qrels.append(f"{name}={files / name}.txt")
    evaluation = evaluate(EvaluateArguments(runs, qrels, measures="RR@10", label="ours", without=["cqadupstack"]))
    (row,) = evaluation.rows
    assert {one.title: evaluation.average(row, one, "RR@10") for one in evaluation.averages} == {
        "cqadupstack": 0.5,
        "Average": 0.75,
        "w/o cqadupstack": 1.0,
    }


def test_the_forums_have_one_name_for_all(monkeypatch):
    from starbucks_retrieval.evaluate import inputs

    monkeypatch.setattr(inputs, "read_qrels", lambda source, split: {source: {"a": 1}})
    sets = inputs.open_sets(["beir/cqadupstack/*"], "test", None)
    assert len(sets) == 12 and sets[0].name == "beir/cqadupstack/android"


@pytest.mark.parametrize(
    ("name", "grade", "named"),
    [
        ("dl19", 3, True),
        ("qrels.dl20-passage", 2, True),
        ("msmarco-passage.trec-dl-2019.judged", 2, True),
        ("dl19", 1, False),
        ("scifact", 2, False),
        ("dl2", 2, False),
    ],
)
def test_of_trecs_passage_tracks_both_limits_of_relevance_are_measured(files, name, grade, named):
    (files / f"{name}.txt").write_text(f"q1 0 a {grade}\nq1 0 b 1\n")
    (files / "b.trec").write_text("q1 Q0 b 1 2.0 x\nq1 Q0 a 2 1.0 x\n")
    evaluation = evaluate(EvaluateArguments(files / "b.trec", str(files / f"{name}.txt")))
    assert evaluation.measures == (
        ["RR@10", "RR(rel=2)@10", "nDCG@10", "R@1000", "R(rel=2)@1000"] if named else ["RR@10", "nDCG@10", "R@1000"]
    )
    mean = evaluation.runs[0].scores.mean
    assert mean["RR@10"] == 1.0 and mean.get("RR(rel=2)@10", 0.5) == 0.5


def test_a_set_that_has_fewer_measures_lacks_their_figures(files):
    (files / "dl19.txt").write_text("d1 0 a 2\n")
    (files / "r.trec").write_text("d1 Q0 a 1 2.0 x\nq1 Q0 a 1 2.0 x\nq2 Q0 c 1 2.0 x\n")
    evaluation = evaluate(
        EvaluateArguments(
            files / "r.trec", [str(files / "dl19.txt"), str(files / "qrels.txt")], output=files / "o.json"
        )
    )
    rows = {line.split()[0]: line.split()[1:] for line in evaluation.table().split("RR(rel=2)@10")[1].splitlines()[1:2]}
    assert rows == {"r": ["1.0000", "–", "–"]}
    cells = read_results(files / "o.json").cells
    assert {cell.dataset for cell in cells if "rel=2" in cell.measure} == {"dl19"}


def test_findings_are_logged_with_their_remedy(files, caplog):
    caplog.set_level(logging.INFO)
    evaluate(EvaluateArguments([files / "half.trec"], str(files / "qrels.txt")))
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("starbucks_retrieval")]
    what, remedy = message.splitlines()
    assert what.startswith("serious: half: 1 of 2 judged queries have no results")
    assert remedy.startswith("  try: ")


def test_files_written(files):
    per_query, output = files / "new" / "per_query.tsv", files / "new" / "figures.json"
    measures = ["RR@10", "nDCG@10"]
    evaluation = evaluate(
        EvaluateArguments(
            [files / "good.trec"], str(files / "qrels.txt"), measures=measures, per_query=per_query, output=output
        )
    )
    header, *rows = [line.split("\t") for line in per_query.read_text().splitlines()]
    assert header == ["run", "query_id", "measure", "value", "set"]
    assert [row[:3] for row in rows] == [["good", q, m] for m in measures for q in ("q1", "q2")]
    assert [float(row[3]) for row in rows] == [evaluation.runs[0].scores.per_query[m][q] for _, q, m, _, _ in rows]
    figures = json.loads(output.read_text())
    assert figures == evaluation.results().to_json()
    assert [cell.pop("values") for cell in figures["cells"]] == list(evaluation.runs[0].scores.per_query.values())
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
    evaluate(EvaluateArguments([files / "bad.trec"], str(files / "other.txt"), output=files / "out.json"))
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
    (run,) = evaluate(EvaluateArguments([files / "nan.trec"], str(files / "qrels.txt"), measures="RR@10")).runs
    assert run.scores.mean["RR@10"] == 1.0
    assert [finding.kind for finding in run.findings] == ["non_finite_scores"]


def test_identical_ids_are_removed_before_the_cut(files):
    (files / "self.trec").write_text("q1 Q0 q1 1 9 x\nq1 Q0 a 2 8 x\nq2 Q0 c 1 5 x\n")
    kept, dropped = (
        evaluate(
            EvaluateArguments(
                [files / "self.trec"], str(files / "qrels.txt"), measures="P@1", remove_identical_ids=flag
            )
        ).runs[0]
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
    (run,) = evaluate(EvaluateArguments([files / "run.trec"], str(folder), split="dev")).runs
    assert [finding.kind for finding in run.findings] == ["truncated_run"]
    assert "last of the queries" in run.findings[0].what
    (run,) = evaluate(
        EvaluateArguments([files / "run.trec"], str(folder / "qrels" / "dev.tsv"), queries=str(folder))
    ).runs
    assert [finding.kind for finding in run.findings] == ["truncated_run"]
    (run,) = evaluate(EvaluateArguments([files / "run.trec"], str(folder / "qrels" / "dev.tsv"))).runs
    assert [finding.kind for finding in run.findings] == ["missing_queries"]


def test_a_run_that_shares_no_query_with_the_qrels_is_refused(files):
    (files / "other.trec").write_text("x9 Q0 a 1 1 x\n")
    with pytest.raises(UserError, match=r"share no query \(the first are 'x9' and 'q1'\)") as error:
        evaluate(EvaluateArguments([files / "other.trec"], str(files / "qrels.txt")))
    assert error.value.hint


def test_strict_refuses_serious_findings_and_writes_nothing(files):
    output = files / "figures.json"
    with pytest.raises(UserError, match="serious findings in the preflight: 1"):
        evaluate(
            EvaluateArguments(
                [files / "half.trec"], str(files / "qrels.txt"), output=output, per_query=files / "p", strict=True
            )
        )
    assert not output.exists()
    assert not (files / "p").exists()
    evaluate(EvaluateArguments([files / "good.trec"], str(files / "qrels.txt"), output=output, strict=True))
    assert output.exists()


def test_a_folder_is_no_output(files):
    with pytest.raises(UserError, match="is a folder"):
        evaluate(EvaluateArguments([files / "good.trec"], str(files / "qrels.txt"), output=files))


def test_names_are_file_names_unless_two_are_the_same(files):
    (files / "twin").mkdir()
    for path in ("twin/good.trec", "my.model.run.txt"):
        (files / path).write_text(GOOD)
    paths = [str(files / path) for path in ("good.trec", "twin/good.trec", "my.model.run.txt", "good.trec")]
    names = [run.name for run in evaluate(EvaluateArguments(paths, str(files / "qrels.txt"))).runs]
    assert names == [paths[0], paths[1], "my.model"]
    (files / ".gz").write_text(GOOD)
    assert [run.name for run in evaluate(EvaluateArguments(files / ".gz", str(files / "qrels.txt"))).runs] == [".gz"]


def test_recorded_scores_of_public_runs(shared):
    folder = shared / "data" / "runs"
    recorded = {}
    for line in (folder / "SCORES.txt").read_text().splitlines():
        recorded[line.split()[0].removesuffix(".trec")] = [float(v) for v in re.findall(r" (\d\.\d+)", line)]
    columns = ["nDCG@10", "RR(rel=2)@10", "AP(rel=2)", "R(rel=2)@100", "RR(rel=2)"]
    runs = sorted(folder.glob("*.trec.gz"))
    evaluation = evaluate(
        EvaluateArguments(runs, str(shared / "data" / "topics-qrels" / "qrels.dl19-passage.txt"), measures=columns)
    )
    assert {run.name for run in evaluation.runs} == recorded.keys()
    for run in evaluation.runs:
        got = [run.scores.mean[name] for name in columns]
        # The record's RR@10 comes from a tool that orders ties by ascending docid; trec_eval's order is descending.
        tied = "tied_scores" in {finding.kind for finding in run.findings}
        for name, ours, theirs in zip(columns, got, recorded[run.name]):
            assert ours == pytest.approx(theirs, abs=0.006 if tied and name == "RR(rel=2)@10" else 5.1e-5), run.name


@pytest.mark.parametrize("count", slow_except([2], [2, 8]))
def test_every_public_run_scores_as_in_trec_eval(shared, count):
    """Query by query, on files read by pytrec_eval's own reader."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels_file = shared / "data" / "topics-qrels" / "qrels.dl19-passage.txt"
    ours = {
        "nDCG@10": "ndcg_cut_10",
        "nDCG": "ndcg",
        "AP": "map",
        "R@100": "recall_100",
        "P@10": "P_10",
        "RR": "recip_rank",
    }
    ours |= {"Rprec": "Rprec", "Bpref": "bpref", "Success@5": "success_5"}
    with open(qrels_file) as handle:
        judge = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(handle), set(ours.values()))
    runs = sorted((shared / "data" / "runs").glob("*.trec.gz"))[:count]
    assert len(runs) == count
    for path, run in zip(runs, evaluate(EvaluateArguments(runs, str(qrels_file), measures=[*ours, "RR@10"])).runs):
        with gzip.open(path, "rt") as handle:
            theirs = judge.evaluate(pytrec_eval.parse_run(handle))
        for name, key in ours.items():
            for query_id, value in run.scores.per_query[name].items():
                assert value == pytest.approx(theirs[query_id][key], abs=1e-6), (path.name, name, query_id)
        for query_id, value in run.scores.per_query["RR@10"].items():
            reciprocal = theirs[query_id]["recip_rank"]
            assert value == pytest.approx(reciprocal if reciprocal > 0.095 else 0.0, abs=1e-6)


def write_run(path, results, tag="x"):
    """A run file from query id -> docids, best first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{q} Q0 {d} {i} {99 - i} {tag}\n" for q, docids in results.items() for i, d in enumerate(docids, 1)]
    path.write_text("".join(lines))
    return str(path)


@pytest.fixture
def two_sets(tmp_path):
    """Judgements of sets `east` and `west`, 8 queries each; `good` runs find them first, `bad` ones second."""
    for name in ("east", "west"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name}{i}\t{name}-d{i}\t1\n" for i in range(8)))
        for kind in ("good", "bad"):
            found = {f"{name}{i}": [f"{name}-d{i}", f"x{i}"][:: 1 if kind == "good" else -1] for i in range(8)}
            write_run(tmp_path / f"{kind}.{name}.trec", found)
    return tmp_path


def test_several_sets_in_one_call(two_sets):
    qrels = [str(two_sets / "east.tsv"), str(two_sets / "west.tsv")]
    runs = [two_sets / name for name in ("good.east.trec", "good.west.trec", "bad.west.trec")]
    evaluation = evaluate(EvaluateArguments(runs, qrels, measures="RR@10 P@1"))
    assert evaluation.table().splitlines() == [
        "RR@10    east    west  Average",
        "good   1.0000  1.0000   1.0000",
        "bad         –  0.5000        –",
        "",
        "P@1     east    west  Average",
        "good  1.0000  1.0000   1.0000",
        "bad        –  0.0000        –",
    ]
    assert evaluation.summary().startswith("3 runs on 2 sets, 16 judged queries")
    assert [(run.name, run.label, run.dataset) for run in evaluation.runs] == [
        ("good.east", "good", "east"),
        ("good.west", "good", "west"),
        ("bad.west", "bad", "west"),
    ]


def test_one_run_may_hold_the_queries_of_several_sets(two_sets):
    both = two_sets / "good.trec"
    both.write_text((two_sets / "good.east.trec").read_text() + (two_sets / "bad.west.trec").read_text())
    evaluation = evaluate(
        EvaluateArguments(both, [str(two_sets / "east.tsv"), str(two_sets / "west.tsv")], measures="RR@10")
    )
    (row,) = evaluation.rows
    assert [evaluation.value(row, name, "RR@10") for name in ("east", "west")] == [1.0, 0.5]
    assert evaluation.average(row, evaluation.averages[0], "RR@10") == 0.75


def test_averages_leave_out_flagged_and_named_sets(two_sets):
    (two_sets / "north.tsv").write_text("n1\td\t1\nn2\td\t1\n")
    write_run(two_sets / "good.north.trec", {"n1": ["d"]})  # n2 was lost
    qrels = [str(two_sets / f"{name}.tsv") for name in ("east", "west", "north")]
    runs = [two_sets / f"good.{name}.trec" for name in ("east", "west", "north")]
    evaluation = evaluate(EvaluateArguments(runs, qrels, measures="RR@10 NumQ", without=["west"]))
    assert evaluation.flagged == ["north"]
    (row,) = evaluation.rows
    averages = {average.title: evaluation.average(row, average, "RR@10") for average in evaluation.averages}
    assert averages == {"Average": pytest.approx(2.5 / 3), "w/o north": 1.0, "w/o west": 0.75}
    header, line, *_ = evaluation.table().splitlines()
    assert header.split() == ["RR@10", "east", "west", "north", "Average", "w/o", "north", "w/o", "west"]
    assert line.split() == ["good", "1.0000", "1.0000", "0.5000!", "0.8333", "1.0000", "0.7500"]
    assert evaluation.table().splitlines()[-1] == "! good on north: truncated run"
    assert "Average" not in evaluation.table().split("NumQ")[1]  # a sum over queries has no average over sets
    with pytest.raises(UserError, match="--without south: no set has this name"):
        evaluate(EvaluateArguments(runs, qrels, without=["south"]))
    with pytest.raises(UserError, match="serious findings"):
        evaluate(EvaluateArguments(runs, qrels, strict=True))


def test_many_sets_become_rows(tmp_path):
    for i in range(12):
        (tmp_path / f"set-of-long-name-{i}.tsv").write_text(f"q{i}\td\t1\n")
    run = write_run(tmp_path / "run", {f"q{i}": ["d"] for i in range(12)})
    qrels = [str(tmp_path / f"set-of-long-name-{i}.tsv") for i in range(12)]
    lines = evaluate(EvaluateArguments(run, qrels, measures="RR@10")).table().splitlines()
    assert [line.split()[0] for line in lines] == ["RR@10", *(f"set-of-long-name-{i}" for i in range(12)), "Average"]
    assert max(map(len, lines)) < 40


def test_ids_that_collide_have_to_be_tied(tmp_path):
    for name in ("cacm", "adi"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{i}\t{name}-d{i}\t1\n" for i in range(1, 5)))
        write_run(tmp_path / f"{name}.trec", {str(i): [f"{name}-d{i}"] for i in range(1, 5)})
    runs, qrels = ([str(tmp_path / f"{name}{end}") for name in ("cacm", "adi")] for end in (".trec", ".tsv"))
    with pytest.raises(UserError, match="'1' and 3 others are in cacm and in adi") as error:
        evaluate(EvaluateArguments(runs, qrels))
    assert error.value.hint == f"say whose run it is: --run cacm={runs[0]} --qrels cacm={qrels[0]}"
    tied = [[f"{name}={path}" for name, path in zip(("cacm", "adi"), paths)] for paths in (runs, qrels)]
    evaluation = evaluate(EvaluateArguments(*tied, measures="RR@10", label="dense"))
    (row,) = evaluation.rows
    assert [evaluation.value(row, name, "RR@10") for name in ("cacm", "adi")] == [1.0, 1.0]
    with pytest.raises(UserError, match="no judgements are called bm25, only cacm, adi"):
        evaluate(EvaluateArguments([f"bm25={runs[0]}"], tied[1]))
    with pytest.raises(UserError, match="two sets of judgements are called cacm"):
        evaluate(EvaluateArguments(runs, [tied[1][0], f"cacm={qrels[1]}"]))
    # The same queries judged twice are scored twice: here are documents in common.
    (tmp_path / "again.tsv").write_text((tmp_path / "cacm.tsv").read_text())
    assert len(evaluate(EvaluateArguments(runs[0], [qrels[0], str(tmp_path / "again.tsv")])).runs) == 2


def test_a_file_whose_name_holds_an_equals_sign_is_a_path(files):
    for name in ("lr=0.1/good.trec", "lr=0.1.trec"):
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_text(GOOD)
    (files / "lr=0.1" / "qrels.txt").write_text(QRELS)
    evaluation = evaluate(
        EvaluateArguments([files / "lr=0.1/good.trec", files / "lr=0.1.trec"], str(files / "lr=0.1" / "qrels.txt"))
    )
    assert [row.title for row in evaluation.rows] == ["good", "lr=0.1"]


def test_labels_come_from_names_tags_and_folders(two_sets):
    found = {f"east{i}": [f"east-d{i}"] for i in range(8)}
    cases = {
        "bm25.trec": ("bm25", "x"),
        "east_splade.run.txt": ("splade", "x"),
        "splade-east-v2.trec": ("splade-v2", "x"),
        "eastern.trec": ("eastern", "x"),
        "dense.L6-D128.trec": ("dense", "starbucks-6:128"),
        "east/L4-D64.trec": ("starbucks", "starbucks-4:64"),
        "tower/east.trec": ("tower", "x"),
    }
    runs = [write_run(two_sets / name, found, tag) for name, (_, tag) in cases.items()]
    evaluation = evaluate(EvaluateArguments(runs, str(two_sets / "east.tsv"), measures="RR@10"))
    assert [run.label for run in evaluation.runs] == [label for label, _ in cases.values()]
    assert [str(run.size) for run in evaluation.runs][4:6] == ["6:128", "4:64"]


def test_one_label_joins_the_sizes_of_a_method(two_sets):
    found = {f"east{i}": [f"east-d{i}"] for i in range(8)}
    runs = [write_run(two_sets / f"{i}.trec", found, f"starbucks-{size}") for i, size in enumerate(("2:32", "6:128"))]
    runs.append(write_run(two_sets / "bm25.trec", found))
    output = two_sets / "results.json"
    evaluation = evaluate(
        EvaluateArguments(
            runs, str(two_sets / "east.tsv"), measures="RR@10", label=["Ours", "Ours", "BM25"], output=output
        )
    )
    assert [row.title for row in evaluation.rows] == ["Ours 2:32", "Ours 6:128", "BM25"]
    results = read_results(output)
    assert (results.kind, results.label) == ("evaluate", "Ours, BM25")
    assert [part.label for part in results.by_label()] == ["Ours", "BM25"]
    cells = results.by_label()[0].cells
    assert [(cell.dataset, cell.measure, str(cell.size), cell.value, cell.count) for cell in cells] == [
        ("east", "RR@10", "2:32", 1.0, 8),
        ("east", "RR@10", "6:128", 1.0, 8),
    ]
    assert cells[0].values == {f"east{i}": 1.0 for i in range(8)}
    assert read_results(output).by_label()[1].cells[0].size is None
    with pytest.raises(UserError, match=r"bm25\.trec and .*other\.trec are both A on east"):
        evaluate(
            EvaluateArguments(
                [runs[2], write_run(two_sets / "other.trec", found)], str(two_sets / "east.tsv"), label="A"
            )
        )
    with pytest.raises(UserError, match="2 labels for 3 runs"):
        evaluate(EvaluateArguments(runs, str(two_sets / "east.tsv"), label=["A", "B"]))


def test_a_baseline_marks_what_is_better_and_what_is_worse(two_sets):
    qrels = [str(two_sets / "east.tsv"), str(two_sets / "west.tsv")]
    mixed = {f"east{i}": [f"x{i}", f"east-d{i}"][:: 1 if i < 4 else -1] for i in range(8)}
    runs = [two_sets / f"{kind}.{name}.trec" for kind in ("good", "bad") for name in ("east", "west")]
    runs.append(write_run(two_sets / "mixed.trec", mixed))
    output = two_sets / "o.json"
    evaluation = evaluate(
        EvaluateArguments(runs, qrels, measures="RR@10 NumQ", output=output),
        ComparisonArguments(baseline="bad", test="randomization"),
    )
    assert evaluation.table().split("\n\n")[0].splitlines() == [
        "RR@10    east     west   Average",
        "good   1.0000+  1.0000+   1.0000",
        "bad    0.5000   0.5000    0.5000",
        "mixed  0.7500        –         –",
    ]
    assert evaluation.table().splitlines()[-1] == (
        "+ better, - worse than bad: two-tailed paired randomisation test, p < 0.05, "
        "Holm's correction over the 3 comparisons of each measure"
    )
    significance = json.loads(output.read_text())["significance"]
    found = {(one["label"], one["dataset"]): one for one in significance["comparisons"]}
    # All eight signs alike: 2 of 2^8 ways; four zeros and four alike: 2 of 2^4.
    assert {key: one["p_value"] for key, one in found.items()} == {
        ("good", "east"): 2 / 256,
        ("good", "west"): 2 / 256,
        ("mixed", "east"): 2 / 16,
    }
    assert found["good", "east"]["adjusted"] == pytest.approx(3 * 2 / 256)
    assert found["mixed", "east"]["difference"] == 0.25
    worse = evaluate(
        EvaluateArguments(runs[::2], qrels, measures="RR@10"), ComparisonArguments(baseline="good", correction="none")
    )
    assert worse.table().splitlines()[2].split() == ["bad", "0.5000-", "–", "–"]


def test_a_baseline_at_several_sizes_is_compared_size_by_size(two_sets):
    runs, labels = [], []
    for kind in ("good", "bad"):
        for size in ("2:32", "6:128"):
            path = two_sets / f"{kind}{size[0]}.trec"
            path.write_text((two_sets / f"{kind}.east.trec").read_text().replace(" x\n", f" starbucks-{size}\n"))
            runs.append(path)
            labels.append(kind)
    evaluation = evaluate(
        EvaluateArguments(runs, str(two_sets / "east.tsv"), measures="RR@10", label=labels),
        ComparisonArguments(baseline="bad"),
    )
    assert [(str(one.size), one.baseline, one.mark) for one in evaluation.comparisons.comparisons] == [
        ("2:32", "bad 2:32", "+"),
        ("6:128", "bad 6:128", "+"),
    ]
    one = evaluate(
        EvaluateArguments(runs, str(two_sets / "east.tsv"), measures="RR@10", label=labels),
        ComparisonArguments(baseline="bad 2:32"),
    )
    assert [comparison.mark for comparison in one.comparisons.comparisons] == ["+", "+", ""]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"baseline": "nobody"}, "--baseline nobody: no run has this name"),
        ({"baseline": "good"}, "nothing can be compared with good"),
        ({"test": "u"}, "--test u: unknown test"),
        ({"correction": "sidak"}, "--correction sidak: unknown correction"),
        ({"alpha": 1.5}, "--alpha 1.5"),
    ],
)
def test_comparisons_that_cannot_be_made(files, asked, what):
    with pytest.raises(UserError, match=re.escape(what)) as error:
        evaluate(
            EvaluateArguments([files / "good.trec"], str(files / "qrels.txt"), output=files / "o.json"),
            ComparisonArguments(**asked),
        )
    assert error.value.hint
    assert not (files / "o.json").exists()


def test_what_is_odd_about_a_file_is_found(files):
    (files / "odd.trec").write_text("q1 Q0 a 1 1.0 x\nq2 Q0 c 1 5.0 x\nq2 Q0 d 2 5.5 x\nq1 Q0 b 2 0.5 x\n")
    (run,) = evaluate(EvaluateArguments(files / "odd.trec", str(files / "qrels.txt"), measures="RR@10")).runs
    findings = {finding.kind: finding for finding in run.findings}
    assert findings.keys() == {"misranked_queries", "scattered_queries"}
    assert findings["misranked_queries"].sample == ("q2",)
    assert findings["misranked_queries"].serious
    assert "scores, which count here as in trec_eval" in findings["misranked_queries"].what
    assert (findings["scattered_queries"].sample, findings["scattered_queries"].serious) == (("q1",), False)
    assert run.scores.per_query["RR@10"] == {"q1": 1.0, "q2": 0.5}


def test_other_runs_tell_where_a_run_was_cut_off(two_sets):
    order = [3, 1, 7, 0, 2, 6, 5, 4]  # unlike the qrels
    whole, cut, holes = (two_sets / f"{name}.trec" for name in ("whole", "cut", "holes"))
    write_run(whole, {f"east{i}": [f"east-d{i}"] for i in order})
    write_run(cut, {f"east{i}": [f"east-d{i}"] for i in order[:5]})
    write_run(holes, {f"east{i}": [f"east-d{i}"] for i in order[1:]})
    (alone,) = evaluate(EvaluateArguments(cut, str(two_sets / "east.tsv"))).runs
    assert [finding.kind for finding in alone.findings] == ["missing_queries"]
    findings_of = {
        run.name: run.findings
        for run in evaluate(EvaluateArguments([cut, holes, whole], str(two_sets / "east.tsv"))).runs
    }
    assert {name: [finding.kind for finding in findings] for name, findings in findings_of.items()} == {
        "cut": ["truncated_run"],
        "holes": ["missing_queries"],
        "whole": [],
    }
    assert "3 of 8 judged queries" in findings_of["cut"][0].what and "the last of holes" in findings_of["cut"][0].what


def test_negative_grades_are_reported_once_per_set(files, caplog):
    caplog.set_level(logging.INFO)
    (files / "signed.txt").write_text("q1 0 a 1\nq1 0 b -2\nq2 0 c -1\n")
    evaluation = evaluate(
        EvaluateArguments(
            [files / "good.trec", files / "half.trec"], str(files / "signed.txt"), measures="P@1 Judged@1 nDCG@2"
        )
    )
    assert [finding.kind for finding in evaluation.sets[0].findings] == ["negative_grades", "nothing_relevant"]
    messages = [record.getMessage() for record in caplog.records if "negative" in record.getMessage()]
    (message,) = messages
    assert message.startswith("note: signed: 2 grades in 2 of 2 judged queries are negative and count as not relevant")
    assert evaluation.runs[0].scores.mean == {"P@1": 0.5, "Judged@1": 0.5, "nDCG@2": 0.5}
    assert evaluation.flagged == ["signed"]  # for the run that lost a query, not for its grades
    assert "preflight findings: 3 (1 serious" in evaluation.summary()


def test_the_policy_on_identical_ids_is_stated(files):
    (files / "self.trec").write_text("q1 Q0 q1 1 9 x\nq1 Q0 a 2 8 x\nq2 Q0 c 1 5 x\n")
    kept, removed = (
        evaluate(EvaluateArguments([files / "self.trec"], str(files / "qrels.txt"), remove_identical_ids=flag))
        for flag in (False, True)
    )
    assert "own id kept," in kept.summary() and "own id removed (1)," in removed.summary()
    assert (kept.figures()["identical_ids"], removed.figures()["identical_ids"]) == ("kept", "removed")
