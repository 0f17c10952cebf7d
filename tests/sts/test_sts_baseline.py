"""Differences from another model's results, and their marks."""

import dataclasses
import json

import numpy as np
import pytest

from starbucks_retrieval import Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results
from starbucks_retrieval.metrics.significance import fisher_z
from starbucks_retrieval.sts import compare_with_baseline, difference_table
from starbucks_retrieval.sts.__main__ import main


def results(label, values, cosines=None, digest="d", gold=None):
    """Results of two sets at one size; with `cosines` of the first set's pairs, or without."""
    cells = [
        Cell(name, "spearman", Size(2, 8), value, 1000, values=cosines and dict(enumerate(cosines)))
        for name, value in zip(("STS12", "STS-B"), values)
    ]
    more = {"data": {name: {"blake2b": digest} for name in ("STS12", "STS-B")}}
    return Results("sts", label, cells, more | ({"gold": gold} if gold else {}))


def test_fishers_marks_and_the_table():
    ours, theirs = results("ours", [0.80, 0.70]), results("theirs", [0.75, 0.69])
    comparison = compare_with_baseline(ours, theirs)
    assert comparison["test"] == "fisher"
    first, second = comparison["cells"]
    assert first["difference"] == pytest.approx(0.05) and first["p"] == fisher_z(0.80, 1000, 0.75, 1000)[1]
    assert first["p"] < 0.05 < second["p"]
    _, row, legend = difference_table(comparison).splitlines()
    assert row.split() == ["2:8", "+0.0500*", "+0.0100", "+0.0300"]
    assert "minus theirs" in legend and "independent" in legend and "uncorrected" in legend
    assert compare_with_baseline(ours, theirs, correction="bonferroni")["cells"][0]["corrected"] == pytest.approx(
        2 * first["p"]
    )


def test_paired_tests_see_what_fishers_misses():
    rng = np.random.default_rng(0)
    gold = rng.normal(size=300)
    one = gold + rng.normal(0, 0.8, 300)
    other = one + rng.normal(0, 0.25, 300)  # nearly the same mistakes

    def of(label, cosines):
        from scipy.stats import spearmanr

        keys = list(map(str, range(300)))
        cell = Cell(
            "x", "spearman", Size(2, 8), spearmanr(cosines, gold).statistic, 300, values=dict(zip(keys, cosines))
        )
        return Results("sts", label, [cell], {"data": {"x": {"blake2b": "d"}}, "gold": {"x": dict(zip(keys, gold))}})

    ours, theirs = of("ours", one), of("theirs", other)
    p_values = {
        test: compare_with_baseline(ours, theirs, test)["cells"][0]["p"] for test in ("williams", "bootstrap", "fisher")
    }
    assert p_values["williams"] < 0.05 and p_values["bootstrap"] < 0.05 and p_values["fisher"] > 0.2
    assert compare_with_baseline(ours, theirs)["test"] == "williams"
    assert (
        compare_with_baseline(ours, dataclasses.replace(theirs, more={"data": {"x": {"blake2b": "d"}}}))["test"]
        == "fisher"
    )


def test_missing_and_other_data():
    ours = results("ours", [0.8, float("nan")])
    comparison = compare_with_baseline(ours, results("theirs", [0.7, 0.7]))
    assert [cell["dataset"] for cell in comparison["cells"]] == ["STS12"]
    with pytest.raises(UserError, match="is another set of pairs in the results of theirs"):
        compare_with_baseline(ours, results("theirs", [0.7, 0.7], digest="e"))
    with pytest.raises(UserError, match="share no set"):
        compare_with_baseline(ours, dataclasses.replace(results("theirs", [0.7, 0.7]), cells=[]))


def test_through_the_door(tiny_bert, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        [str(rng.integers(0, 6)), *(" ".join(f"w{i}" for i in rng.integers(0, 20, 5)) for _ in "ab")] for _ in range(50)
    ]
    (tmp_path / "x.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    argv = ["--model_name_or_path", str(tiny_bert), "--data", "x.tsv", "--sizes", "2:8,4:32", "--quiet"]
    assert run_command(main, [*argv, "--pooling", "mean", "--output", "plain.json"]) == 0
    assert run_command(main, [*argv, "--pooling", "mean", "--output", "pairs.json", "--keep_pairs"]) == 0
    capsys.readouterr()
    assert run_command(main, [*argv, "--baseline", "pairs.json", "--output", "out.json"]) == 0
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert table[0].split() == ["size", "x"] and "Williams" in table[-1]
    written = json.loads((tmp_path / "out.json").read_text())
    assert "gold" not in written and "values" not in written["cells"][0]
    ours, theirs = ({cell.size: cell.value for cell in read_results(f"{name}.json").cells} for name in ("out", "plain"))
    for cell in written["comparison"]["cells"]:
        size = Size.parse(cell["size"])
        assert cell["difference"] == pytest.approx(ours[size] - theirs[size])
        assert 0 <= cell["p"] <= 1
    assert run_command(main, [*argv, "--baseline", "plain.json"]) == 0
    assert "Fisher" in capsys.readouterr().out
    assert run_command(main, [*argv, "--baseline", "plain.json", "--test", "bootstrap"]) == 2
    assert "measure that model again with --keep_pairs" in capsys.readouterr().err
    write_results("grid.json", Results("grid", "g", []))
    assert run_command(main, [*argv, "--baseline", "grid.json"]) == 2
    assert run_command(main, [*argv, "--baseline", "nowhere.json"]) == 2
