"""A small table from the first job to the page, on made-up data: kept, resumed and damaged jobs."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.equivalence import mean_difference
from starbucks_retrieval.metrics.results import Cell, read_results
from starbucks_retrieval.metrics.significance import paired_test
from starbucks_retrieval.report import drawing
from starbucks_retrieval.reproduce import ReproduceArguments, reproduce, run, sentence_transformers
from starbucks_retrieval.reproduce.__main__ import main
from starbucks_retrieval.reproduce.api import plan_reproduction
from starbucks_retrieval.reproduce.claims import judge
from starbucks_retrieval.reproduce.comparisons import compare_rows
from starbucks_retrieval.reproduce.jobs import LIBRARY
from starbucks_retrieval.reproduce.layout import make_table, shown_columns
from starbucks_retrieval.reproduce.made import make_data
from starbucks_retrieval.reproduce.results import RowScores, SeedScore, check_queries, collect
from starbucks_retrieval.sizes import Size

TABLE = """\
title: Two rows
source: a test
rows:
  - {name: SRL, train: {retrieval: {preset: starbucks-msmarco, sizes: "2:32,12:768"}}}
  - {name: bare}
  - {name: later, blocked: needs another stage}
columns: [MS MARCO]
sizes: 2:32,12:768
baseline: bare
published:
  - {row: later, set: MS MARCO, measure: RR@10, size: "12:768", value: 0.5, source: "a paper, Table 1"}
claims:
  - {id: a, says: SRL is above the backbone, row: SRL, than: bare}
scales:
  tiny: {layers: "2,12", dims: "32,768"}
"""

SPLITS = """\
title: Two judgements
source: a test
rows: [{name: bare}]
columns: [DL19, DL20]
sizes: 2:32,12:768
scales:
  tiny: {layers: "2,12", dims: "32,768", sets: {DL20: {task: retrieval, path: ./beir, split: train}}}
"""
LIBRARY_ROW = "{name: later, train: {retrieval: {loss: Matryoshka2dLoss, like: SRL, train_dims: '32,768'}}}"
SETS = """\
title: Answers, and a set of two forums
source: a test
rows: [{name: bare}]
columns: [NQ answers, CQADupStack]
sizes: 2:32,12:768
scales:
  tiny:
    layers: "2,12"
    dims: "32,768"
    sets: {CQADupStack: {path: ./forums/*}}
"""


@pytest.fixture(autouse=True)
def undrawn(monkeypatch) -> None:
    """The figures of a page take longer than its jobs: only those of `finished`, and tests/report, are drawn."""
    monkeypatch.setattr(drawing, "_drawn", lambda *_, **__: dict.fromkeys(("png", "svg"), b"<svg></svg>"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    (folder / "two.yaml").write_text(TABLE)
    arguments = ReproduceArguments(str(folder / "two.yaml"), output_dir=str(folder / "out"))
    return folder, arguments, reproduce(arguments)


def test_measured_scores_stand_beside_published_ones(finished):
    folder, _, figures = finished
    assert figures["complete"] and figures["verdicts"] == {"a": "not testable here"}
    assert figures["missing"] == {"later": "needs another stage"}
    text = figures["markdown"]
    assert "_later (published)_ | _0.5000_" in text and "Not run (needs another stage): later." in text
    assert "_later (published)_" not in text.split("6:48")[0]  # only at its size
    scores = [line for line in text.splitlines() if "| SRL |" in line]
    assert len(scores) == 2 and all(0 <= float(line.split("|")[3].strip(" *\\")) <= 1 for line in scores)
    out = folder / "out" / "tiny" / "two"
    assert {"two.md", "two.tex", "two.csv", "commands.txt"} <= {path.name for path in out.iterdir()}
    averages = (out / "page" / "averages.csv").read_text()
    assert "RR@10" in averages and "nDCG" not in averages and "R@1000" not in averages  # the job measured them too


def test_a_second_call_keeps_every_job_and_a_damaged_one_runs_again(finished, caplog):
    folder, arguments, figures = finished
    with caplog.at_level(logging.INFO):
        assert reproduce(arguments)["markdown"] == figures["markdown"]
    assert "3 jobs, of which 3 are finished" in caplog.text
    root = folder / "out"
    jobs = plan_reproduction(arguments).jobs()
    grid = next(job for job in jobs if job.stage == "grid")
    result = grid.folder(root) / grid.output
    content = result.read_bytes()
    record = grid.folder(root) / ".starbucks-reproduce" / "grid.json"
    for damage in (lambda: result.write_bytes(content[:-9]), result.unlink, lambda: record.write_text("{")):
        damage()
        assert not run.is_done(grid, root)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run.run_jobs(jobs, root, child=False, minutes=None)
        assert json.loads(result.read_bytes())["cells"] == json.loads(content)["cells"]
        assert "3 jobs, of which 2 are finished" in caplog.text
        assert run.is_done(grid, root)


@pytest.mark.slow  # beside a second call whose jobs are damaged
def test_a_killed_call_goes_on_with_the_job_that_it_was_at(finished, tmp_path, monkeypatch, caplog):
    _, arguments, _ = finished

    class Killed(BaseException):
        pass

    work, calls = run._work, []

    def kill_second(job, *rest):
        calls.append(job.stage)
        if len(calls) == 2:
            raise Killed
        return work(job, *rest)

    other = ReproduceArguments(arguments.table, output_dir=str(tmp_path))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(run, "_work", kill_second)
        reproduce(other)
    jobs = plan_reproduction(other).jobs()
    with caplog.at_level(logging.INFO):
        run.run_jobs(jobs, tmp_path, child=False, minutes=None)
    assert all(run.is_done(job, tmp_path) for job in jobs)
    assert "3 jobs, of which 1 are finished" in caplog.text


def test_answers_are_searched_and_forums_count_as_one_set(tmp_path, caplog):
    out = tmp_path / "out"
    assert make_data(out / "made") and not make_data(out / "made")
    beir, forums = out / "made" / "beir", out / "made" / "forums"
    for name, queries in (("gis", 10), ("tex", 24)):  # of other lengths, so that the mean over queries differs
        shutil.copytree(beir, forums / name)
        judged = (beir / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
        (forums / name / "qrels" / "test.tsv").write_text("".join(judged[: 1 + 2 * queries]))
    (tmp_path / "sets.yaml").write_text(SETS)
    arguments = ReproduceArguments(str(tmp_path / "sets.yaml"), output_dir=str(out))
    reproduce(arguments)
    plan = plan_reproduction(arguments)
    jobs = {job.stage: job for job in plan.jobs()}
    assert {*jobs} == {"encode", "search", "evaluate", "grid"}
    assert not jobs["encode"].folder(out).joinpath("stores").exists()
    scores, _ = collect(plan, out)
    cells = scores["bare"].cells

    texts = {one["_id"]: one["text"] for one in map(json.loads, (beir / "corpus.jsonl").read_text().splitlines())}
    lines = (out / "made" / "answers.jsonl").read_text().splitlines()
    answers = {one["query_id"]: one["answers"][0] for one in map(json.loads, lines)}
    first: dict[str, list[str]] = {}
    for line in (jobs["search"].folder(out) / "runs" / "L1-D2.trec").read_text().splitlines():
        query, _, docid, *_ = line.split()
        first.setdefault(query, []).append(docid)
    found = {query: any(answers[query] in texts[docid].split() for docid in ids[:10]) for query, ids in first.items()}
    cell = cells["NQ answers", "Success@10", Size(1, 2), None]
    assert cell.values == found and 0 < cell.value < 1

    grid = read_results(jobs["grid"].folder(out) / "results.json").cells
    means = [cell.value for cell in grid if cell.size == Size(6, 48)]
    forum = cells["CQADupStack", "nDCG@10", Size(6, 48), None]
    assert len(means) == 2 and forum.value == pytest.approx(sum(means) / 2) and forum.count == 34
    jobs["encode"].folder(out).joinpath("stores").mkdir()  # as a run that was killed after its search
    with caplog.at_level(logging.INFO):  # embeddings that nothing needs any more are not made again
        run.run_jobs(plan.jobs(), out, child=False, minutes=None)
    assert "5 jobs, of which 5 are finished" in caplog.text
    assert not jobs["encode"].folder(out).joinpath("stores").exists()
    jobs["search"].folder(out).joinpath("runs", "L1-D2.trec").unlink()
    assert not run.unfinished(plan.jobs(), out)
    jobs["evaluate"].folder(out).joinpath("results.json").unlink()
    assert [job.stage for job in run.unfinished(plan.jobs(), out)] == ["encode", "encode", "search", "evaluate"]


def test_passages_are_encoded_once_for_two_judgements_of_a_set(tmp_path, monkeypatch):
    (tmp_path / "two.yaml").write_text(SPLITS)
    arguments = ReproduceArguments(str(tmp_path / "two.yaml"), output_dir=str(tmp_path / "out"))
    (tmp_path / "one.yaml").write_text(SPLITS.replace("[DL19, DL20]", "[DL20]"))
    alone = ReproduceArguments(str(tmp_path / "one.yaml"), output_dir=str(tmp_path / "alone"))
    work, found = run._work, []

    def note(job, root, *rest):
        found.append(len([*root.glob("jobs/embeddings-*/*/passages*")]))
        return work(job, root, *rest)

    monkeypatch.setattr(run, "_work", note)
    reproduce(arguments)
    reproduce(alone)
    assert found == [0, 1, 0]  # the second grid finds those of the first
    assert not [*tmp_path.glob("*/jobs/embeddings-*")]
    both, one = (
        collect(plan_reproduction(each), Path(each.output_dir))[0]["bare"].cells for each in (arguments, alone)
    )
    assert len(both) == 2 * len(one) and all(both[key].value == cell.value for key, cell in one.items())


def test_no_job_begins_when_the_time_is_over(tmp_path):
    (tmp_path / "two.yaml").write_text(TABLE)
    jobs = plan_reproduction(ReproduceArguments(str(tmp_path / "two.yaml"), output_dir=str(tmp_path))).jobs()
    with pytest.raises(run.Stopped):
        run.run_jobs(jobs, tmp_path, child=False, minutes=1e-9)
    assert not (tmp_path / "jobs").exists()


def test_the_command_lists_plans_and_prints(finished, capsys, monkeypatch):
    folder, _, figures = finished
    monkeypatch.chdir(folder)
    assert run_command(main, ["--list", "--json"]) == 0
    assert "starbucks/table2" in json.loads(capsys.readouterr().out)["tables"]
    assert run_command(main, ["two.yaml", "--output_dir", "out", "--dry_run"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("finished") == 3 and "3 jobs, 0 to run: 0.00 hours" in printed.err
    assert run_command(main, ["two.yaml", "--output_dir", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == figures["verdicts"]
    assert run_command(main, ["two.yaml", "--only", "nothing"]) == 2
    assert run_command(main, ["no/table"]) == 2
    errors = capsys.readouterr().err
    assert "no row is called 'nothing'" in errors and "no table is called no/table" in errors


def test_sentence_transformers_trains_for_the_time_of_another_row(finished, tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    folder, _, _ = finished
    (folder / "three.yaml").write_text(TABLE.replace("{name: later, blocked: needs another stage}", LIBRARY_ROW))
    arguments = ReproduceArguments(str(folder / "three.yaml"), output_dir=str(folder / "out"))
    times, seconds = [], sentence_transformers._seconds
    monkeypatch.setattr(sentence_transformers, "_seconds", lambda arguments: times.append(seconds(arguments)) or 0.01)
    reproduce(arguments)
    plan = plan_reproduction(arguments)
    scores, _ = collect(plan, folder / "out")
    assert scores["later"].cells.keys() == scores["SRL"].cells.keys()
    job = next(job for job in plan.jobs() if job.stage == LIBRARY)
    srl = next(job for job in plan.jobs() if job.stage == "train")
    record = json.loads((srl.folder(folder / "out") / ".starbucks-reproduce" / "train.json").read_text())
    assert times == [record["figures"]["processor_seconds"]]
    assert job.flags["as_long_as"] == srl and "sentence_transformers --model_name" in job.command(folder)
    kept = ("learning_rate", "dataset_path", "per_device_train_batch_size", "seed")
    assert all(job.flags[name] == srl.flags[name] for name in kept)
    model = SentenceTransformer(str(job.folder(folder / "out") / "model"))
    assert model.similarity_fn_name == "dot" and model[1].pooling_mode == "cls"  # of SRL's preset

    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed") as refused:
        run.run_jobs(plan.jobs(), tmp_path, child=False, minutes=None)
    assert "--only" in refused.value.hint and not (tmp_path / "jobs").exists()


def test_the_time_of_a_training_counts_all_its_runs(finished, tmp_path, monkeypatch):
    _, arguments, _ = finished
    job = next(job for job in plan_reproduction(arguments).jobs() if job.stage == "train")
    clock = iter([10.0, 12.0, 20.0, 23.0])  # begin and end of two runs
    monkeypatch.setattr(run, "_processor_seconds", lambda: next(clock))

    def stop(job, folder, *rest):
        (folder / "model" / "checkpoint-1").mkdir(parents=True)
        (folder / "model" / "checkpoint-1" / "trainer_state.json").touch()
        raise run.Stopped

    job.folder(tmp_path).mkdir(parents=True)
    monkeypatch.setattr(run, "_run_child", stop)
    with pytest.raises(run.Stopped):
        run._work(job, tmp_path, True, 1.0)
    monkeypatch.setattr(run, "_run_child", lambda *rest: None)
    assert run._work(job, tmp_path, True, None)["processor_seconds"] == 5.0


def row(name, values, count=None, passages=None):
    cells = {}
    for size, mean in values.items():
        queries = {f"q{i}": mean + 0.01 * (i % 3) for i in range(30)}
        size = Size.parse(size)
        cells["MS MARCO", "RR@10", size, passages and Size(passages, size.dim)] = Cell(
            "MS MARCO", "RR@10", size, mean + 0.01, count or 30, values=queries
        )
    return RowScores(name, cells, {}, {})


@pytest.mark.parametrize(
    ("kind", "ours", "theirs", "verdict"),
    [
        ("above", 0.5, 0.4, "confirmed"),
        ("above", 0.4, 0.5, "not confirmed"),
        ("above", 0.5, 0.5, "not confirmed"),
        ("on_par", 0.5, 0.51, "confirmed"),
        ("on_par", 0.5, 0.47, "not confirmed"),
    ],
)
def test_verdicts_come_from_declared_comparisons(tmp_path, kind, ours, theirs, verdict):
    path = tmp_path / "claim.yaml"
    path.write_text(TABLE.replace("than: bare}", f"than: bare, kind: {kind}}}"))
    arguments = ReproduceArguments(str(path), output_dir=str(tmp_path))
    plan = plan_reproduction(arguments)
    plan.scale.__dict__["testable"] = True
    both = {"1:2": ours, "6:48": ours}
    scores = {"SRL": row("SRL", both), "bare": row("bare", dict.fromkeys(both, theirs))}
    (found,) = judge(plan, scores, [("MS MARCO", "RR@10")])
    assert found.verdict == verdict, found
    part = "" if kind == "on_par" else " on average over 2 scores"
    assert f"{ours - theirs:+.4f}{part}" in found.because
    (missing,) = judge(plan, {"SRL": scores["SRL"]}, [("MS MARCO", "RR@10")])
    assert missing.verdict == "not testable here" and "bare has no scores" in missing.because


@pytest.mark.parametrize(("noise", "verdict"), [(0.001, "confirmed"), (0.1, "not confirmed")])
def test_claims_and_asterisks_are_tested_over_seeds_too(tmp_path, noise, verdict):
    path = tmp_path / "claim.yaml"
    path.write_text(TABLE.replace("bare}\n", "bare, train: {retrieval: {preset: full-msmarco}}}\n", 1))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    plan.scale.__dict__["testable"] = True
    scores = {"SRL": row("SRL", {"1:2": 0.6, "6:48": 0.6}), "bare": row("bare", {"1:2": 0.5, "6:48": 0.5})}
    for number, one in enumerate(scores.values()):
        for key, cell in one.cells.items():
            mean = SeedScore.of(cell)
            shifts = (noise * (seed + number) % (3 * noise) for seed in range(3))
            one.by_seed[key] = [
                dataclasses.replace(mean, value=mean.value + shift, values=mean.values + shift) for shift in shifts
            ]
    assert judge(plan, scores, [("MS MARCO", "RR@10")])[0].verdict == verdict
    table = make_table(plan, "t", scores, {})
    marks = [line.cells[0].sign for block in table.blocks for line in block.rows if line.name == "SRL"]
    assert marks == ["*" if verdict == "confirmed" else ""] * 2
    (note,) = [note for note in table.notes if "differs from bare" in note]
    assert "t-test over queries and seeds (2 comparisons), as for the verdicts about claims" in note
    found = compare_rows(plan.table, scores, shown_columns(plan), [*plan.sizes]).found
    for (column, size), by_row in found.items():
        key = (column.dataset, column.measure, size, None)
        ours, theirs = ([seed.values for seed in scores[name].by_seed[key]] for name in ("SRL", "bare"))
        expected = mean_difference(ours, theirs)
        assert (by_row["SRL"].p, by_row["SRL"].interval) == (expected.p_value, expected.interval())
        means = [np.mean(side, axis=0) for side in (ours, theirs)]
        assert paired_test(*means).p_value < by_row["SRL"].p  # over queries alone, more would be significant


def test_a_table_of_one_seed_is_marked_by_the_paired_t_test_over_queries(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(TABLE)
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    scores = {"SRL": row("SRL", {"1:2": 0.6, "6:48": 0.5}), "bare": row("bare", {"1:2": 0.5, "6:48": 0.5})}
    noisy = scores["bare"].cells["MS MARCO", "RR@10", Size(6, 48), None].values
    noisy.update({query: value + 0.1 * (-1) ** number for number, (query, value) in enumerate(noisy.items())})
    table = make_table(plan, "t", scores, {})
    lines = [line for block in table.blocks for line in block.rows if line.name == "SRL"]
    assert [line.cells[0].sign for line in lines] == ["*", ""]
    ours, theirs = (scores[name].cells["MS MARCO", "RR@10", Size(6, 48), None].values for name in ("bare", "SRL"))
    assert lines[1].cells[0].comparison.p == pytest.approx(paired_test(ours, theirs).p_value)
    assert "paired t-test over queries (2 comparisons)" in " ".join(table.notes)


def test_scores_without_those_of_queries_have_no_mark_and_a_note(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(TABLE)
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    scores = {"SRL": row("SRL", {"1:2": 0.6}), "bare": row("bare", {"1:2": 0.5})}
    cells = scores["bare"].cells
    cells.update({key: dataclasses.replace(cell, values=None) for key, cell in cells.items()})
    notes = " ".join(make_table(plan, "t", scores, {}).notes)
    assert "Not tested, and so without a mark: 1 comparisons, because a figure comes without" in notes
    assert "differs from" not in notes


def test_correlations_over_the_same_pairs_are_compared_as_dependent(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(TABLE.replace("than: bare}", "than: bare, kind: on_par}").replace("MS MARCO", "STS-B"))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    plan.scale.__dict__["testable"] = True

    def correlated(name, value, keep):
        values = {str(i): i % 97 + (i % 5) * (name == "bare") for i in range(1000)} if keep else None
        cells = [Cell("STS-B", "spearman", size, value, 1000, values=values) for size in plan.sizes]
        return RowScores(name, {("STS-B", "spearman", cell.size, None): cell for cell in cells}, {}, {})

    for keep, expected in ((True, "confirmed"), (False, "not confirmed")):  # independent, the interval is too wide
        scores = {name: correlated(name, value, keep) for name, value in (("SRL", 0.7), ("bare", 0.705))}
        found = judge(plan, scores, [("STS-B", "spearman")])[0]
        assert found.verdict == expected, found
        name = "Williams' test" if keep else "Fisher's z"
        assert name in " ".join(make_table(plan, "t", scores, {}).notes)


def test_a_gain_compares_two_parts_of_a_table(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(
        TABLE.replace("than: bare}", 'than: bare, kind: gain, at: {sizes: ["2:32"]}, against: {sizes: ["12:768"]}}')
    )
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    plan.scale.__dict__["testable"] = True
    for small, one_query, verdict in (
        (0.6, False, "confirmed"),
        (0.5, False, "not confirmed"),
        (0.6, True, "not confirmed"),
    ):
        scores = {"SRL": row("SRL", {"1:2": small, "6:48": 0.55}), "bare": row("bare", {"1:2": 0.5, "6:48": 0.5})}
        if one_query:  # the mean is the same, by a single query
            of_size = scores["SRL"].cells["MS MARCO", "RR@10", Size.parse("1:2"), None]
            bare = scores["bare"].cells["MS MARCO", "RR@10", Size.parse("1:2"), None]
            of_size.values.update(bare.values, q0=bare.values["q0"] + 3.0)
        assert judge(plan, scores, [("MS MARCO", "RR@10")])[0].verdict == verdict


def test_a_claim_about_passages_of_another_layer_reads_those_scores(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(TABLE.replace("than: bare}", 'than: bare, sizes: ["2:32"], passage_layer: 12}'))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    plan.scale.__dict__["testable"] = True
    for layer, verdict in ((6, "confirmed"), (3, "not testable here")):
        scores = {name: row(name, {"1:2": value}, passages=layer) for name, value in (("SRL", 0.6), ("bare", 0.5))}
        assert judge(plan, scores, [("MS MARCO", "RR@10")])[0].verdict == verdict


def test_a_heat_map_shows_passages_of_the_last_layer_too(tmp_path):
    path = tmp_path / "heat.yaml"
    path.write_text(TABLE.replace("sizes: 2:32,12:768", "sizes: grid\nlayout: heat"))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    values = {(1, 1): 0.1, (1, 6): 0.2, (6, 1): 0.3, (6, 6): 0.4}
    cells = {
        ("MS MARCO", "RR@10", Size(a, 2), Size(b, 2)): Cell("MS MARCO", "RR@10", Size(a, 2), value, 9, passage_size=Size(b, 2))
        for (a, b), value in values.items()
    }  # fmt: skip
    table = make_table(plan, "heat", {"SRL": RowScores("SRL", cells, {}, {}), "bare": row("bare", {"1:2": 0.5})}, {})
    shown = {block.title: [line.cells[0].value for line in block.rows] for block in table.blocks}
    assert shown["SRL, MS MARCO RR@10"] == [0.1, 0.4]
    assert shown["SRL, MS MARCO RR@10, passages of layer 6"] == [0.2, 0.4]
    assert "bare, MS MARCO RR@10, passages of layer 6" not in shown


def test_differences_leave_out_a_row_with_the_baselines_model(tmp_path):
    path = tmp_path / "differences.yaml"
    same = "  - {name: all pairs, measure: {asymmetric: true}}\n  - {name: later"
    path.write_text(TABLE.replace("sizes: 2:32,12:768", "layout: differences").replace("  - {name: later", same))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    scores = {name: row(name, {"1:2": value}) for name, value in (("SRL", 0.75), ("bare", 0.5))}
    scores["all pairs"] = row("all pairs", {"1:2": 0.26}, passages=6)
    table = make_table(plan, "differences", scores, {})
    shown = {block.title: block.rows[0].cells[0].value for block in table.blocks}
    assert [*shown] == ["SRL less bare, MS MARCO RR@10", "all pairs, MS MARCO RR@10, passages of layer 6"]
    assert [*shown.values()] == pytest.approx([0.25, 0.27])  # not the difference


def test_averages_leave_out_a_set_that_the_scale_does_not_have(tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text(TABLE.replace("columns: [MS MARCO]", "columns: [MS MARCO, DL20]"))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    del plan.scale.sets["DL20"]
    assert {column.measure for column in shown_columns(plan)} == {shown_columns(plan)[0].measure}  # not another column
    table = make_table(plan, "t", {"bare": row("bare", {"1:2": 0.5})}, {})
    (line,) = [line for line in table.blocks[0].rows if line.name == "bare"]
    assert [cell.value for cell in line.cells] == [0.51, None, 0.51]
    assert "Averages of measured scores are without DL20, which this scale does not have." in table.notes


def test_a_claim_about_a_layer_that_the_backbone_lacks_is_not_judged_at_others(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(TABLE.replace("than: bare}", 'than: bare, sizes: ["2:32"], passage_layer: 11}'))
    plan = plan_reproduction(ReproduceArguments(str(path), output_dir=str(tmp_path)))
    plan.scale.__dict__["testable"] = True
    scores = {name: row(name, {"1:2": value}) for name, value in (("SRL", 0.6), ("bare", 0.5))}
    (found,) = judge(plan, scores, [("MS MARCO", "RR@10")])
    assert found.verdict == "not testable here" and "layer 11 of 12:768" in found.because


def test_rows_of_other_queries_are_refused():
    ours, theirs = row("SRL", {"2:32": 0.5}), row("bare", {"2:32": 0.5}, count=29)
    with pytest.raises(UserError, match="row 'bare' was scored on other queries of MS MARCO than 'SRL': 29, not 30"):
        check_queries([ours, theirs])
