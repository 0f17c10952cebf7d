from __future__ import annotations

import json

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.evaluate.__main__ import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\nq2 0 c 1\n")
    (tmp_path / "good.trec").write_text("q1 Q0 a 1 2 x\nq2 Q0 c 1 5 x\n")
    (tmp_path / "half.trec").write_text("q1 Q0 b 1 2 x\nq1 Q0 a 2 1 x\n")
    return tmp_path


def test_a_table_on_standard_output(files, capsys):
    assert (
        run_command(main, ["--run", "good.trec", "half.trec", "--qrels", "qrels.txt", "--measures", "RR@10", "P@1"])
        == 0
    )
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "run    RR@10     P@1",
        "good  1.0000  1.0000",
        "half  0.2500  0.0000  !",
        "",
        "! half: truncated run",
    ]
    finding, remedy, summary = err.splitlines()
    assert finding.startswith("serious: half: 1 of 2 judged queries")
    assert remedy.startswith("  try: ")
    assert summary.startswith("2 runs, 2 judged queries")


def test_run_may_be_repeated(files, capsys):
    assert run_command(main, ["--run", "good.trec", "--run", "half.trec", "--qrels", "qrels.txt"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == ["run", "good", "half"]


def test_the_baseline_is_a_flag(files, capsys):
    argv = ["--run", "good.trec", "half.trec", "--qrels", "set=qrels.txt", "--baseline", "good", "--test", "bootstrap"]
    assert run_command(main, [*argv, "--correction", "none", "--json", "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)["significance"]
    assert (figures["baseline"], figures["test"], figures["correction"]) == ("good", "bootstrap", "none")
    assert [one["label"] for one in figures["comparisons"]] == ["half"] * 3
    assert "+ better, - worse than good: two-tailed paired bootstrap, p < 0.05" in err


def test_differences_have_intervals_and_a_verdict_within_a_margin(tmp_path, monkeypatch, capsys):
    from scipy.stats import ttest_1samp

    monkeypatch.chdir(tmp_path)
    (tmp_path / "qrels.txt").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(40)))
    for name, ranks in (("base", [1] * 40), ("near", [1] * 39 + [2]), ("far", [2] * 40)):
        lines = [
            f"q{i} Q0 {'d' if r == rank else 'x'}{i} {r} {9 - r} x\n" for i, rank in enumerate(ranks) for r in (1, 2)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    runs = ["--run", "base.trec", "near.trec", "far.trec", "--qrels", "qrels.txt", "--measures", "RR@10", "P@1"]
    argv = [*runs, "--baseline", "base", "--margin", "0.05", "--quiet", "--output", "o.json"]
    assert run_command(main, [*argv, "--family", "table"]) == 0
    text = capsys.readouterr().out
    assert "over all 4 comparisons" in text and "margin 0.05" in text
    [near] = [line for line in text.splitlines() if line.startswith("near") and "RR@10  " in line and "-" in line]
    differences = [0.0] * 39 + [-0.5]
    low, high = ttest_1samp(differences, 0).confidence_interval()
    assert f"-0.0125  {low:+.4f} {high:+.4f}" in near
    found = json.loads((tmp_path / "o.json").read_text())["significance"]
    assert (found["margin"], found["family"]) == (0.05, "all comparisons")
    one = {(each["label"], each["measure"]): each for each in found["comparisons"]}
    above = ttest_1samp(differences, -0.05, alternative="greater").pvalue
    # Holm over four: P@1 of near has twice the difference and more than twice the p-value; far has p = 1.
    assert one["near", "RR@10"]["p_non_inferior"] == pytest.approx(4 * above)
    assert one["near", "RR@10"]["verdict"] == "equivalent" and one["far", "P@1"]["verdict"] == "open"
    assert one["near", "RR@10"]["interval"] == pytest.approx([low, high])


def test_json_is_all_of_standard_output(files, capsys):
    argv = [
        "--run",
        "half.trec",
        "--qrels",
        "qrels.txt",
        "--json",
        "--quiet",
        "--per_query",
        "p.tsv",
        "--output",
        "o.json",
    ]
    assert run_command(main, argv) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    written = json.loads((files / "o.json").read_text())
    values = [cell.pop("values") for cell in written["cells"]]
    assert values[0] == {"q1": 0.5, "q2": 0.0}
    assert figures == written  # values of single queries are in the file only
    assert figures["runs"][0]["measures"]["RR@10"] == 0.25
    assert figures["runs"][0]["findings"][0]["kind"] == "truncated_run"
    assert len((files / "p.tsv").read_text().splitlines()) == 1 + 2 * 3
    assert err.startswith("serious")  # what is serious is said even then
    assert "judged queries, preflight" not in err


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--qrels", "qrels.txt"], "--run is missing"),
        (["--run", "good.trec"], "--qrels is missing"),
        (["--run", "nope.trec", "--qrels", "qrels.txt"], "nope.trec"),
        (["--run", "good.trec", "--qrels", "nope.txt"], "nope.txt"),
        (["--run", "good.trec", "--qrels", "qrels.txt", "--measures", "ndcg@10"], "ndcg@10"),
        (["--run", "bad.trec", "--qrels", "qrels.txt"], "bad.trec:2:"),
        (["--run", "twice.trec", "--qrels", "qrels.txt"], "twice.trec:2:"),
        (["--run", "half.trec", "--qrels", "qrels.txt", "--strict"], "serious findings"),
        (["--run", "good.trec", "--qrels", "qrels.txt", "--baseline", "x"], "--baseline"),
        (["--run", "good.trec", "--qrels", "qrels.txt", "--margin", "0.1"], "--margin needs"),
        (["--run", "good.trec", "--qrels", "qrels.txt", "--baseline", "good", "--margin", "-1"], "a margin of -1"),
    ],
)
def test_a_users_error_is_two_lines_and_exit_2(files, capsys, argv, what):
    (files / "bad.trec").write_text("q1 Q0 a 1 2 x\nq2 Q0 c 1\n")
    (files / "twice.trec").write_text("q1 Q0 a 1 2 x\nq1 Q0 a 2 1 x\n")
    assert run_command(main, [*argv, "--output", "out.json"]) == 2
    out, err = capsys.readouterr()
    *_, error, remedy = err.splitlines()
    assert out == ""
    assert error.startswith("error: ")
    assert what in error
    assert remedy.startswith("  try: ")
    assert not (files / "out.json").exists()
