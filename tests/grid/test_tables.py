"""Two grids laid against each other, and the door that shows them."""

from __future__ import annotations

import json

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid import deltas
from starbucks_retrieval.grid.__main__ import main
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results
from starbucks_retrieval.sizes import Size


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = {(1, 8): 0.25, (1, 16): 0.5, (2, 8): 0.75, (2, 16): 1.0}
    theirs = {(1, 8): 0.5, (1, 16): 0.25, (2, 16): float("nan"), (3, 8): 0.125}
    for name, values in (("ours", ours), ("theirs", theirs)):
        cells = [Cell("scifact", "nDCG@10", Size(*place), value, 300) for place, value in values.items()]
        write_results(f"{name}.json", Results("grid", name, cells))
    return tmp_path


def test_cells_of_one_less_those_of_the_other():
    found = deltas("ours.json", "theirs.json")
    assert (found.kind, found.label) == ("deltas", "ours − theirs")
    values = {str(cell.size): cell.value for cell in found.cells}
    assert (values["1:8"], values["1:16"]) == (-0.25, 0.25)
    assert all(values[size] != values[size] for size in ("2:8", "2:16", "3:8"))  # NaN: one of the two lacks it
    assert found.more["made_of"]["subtrahend"]["label"] == "theirs"


def test_the_matrix_shows_what_is_missing(files, capsys):
    argv = ["--input", "ours.json", "--minus", "theirs.json", "--output", "deltas.json"]
    assert run_command(main, argv) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["scifact,", "nDCG@10", "(300", "queries)"],
        ["layer", "\\", "dim", "8", "16"],
        ["1", "-0.2500", "+0.2500"],
        ["2", "missing", "missing"],
        ["3", "missing", "missing"],
    ]
    assert "deltas.json" in err
    cells = {str(cell.size): cell.value for cell in read_results("deltas.json").cells}
    assert cells["1:16"] == 0.25 and cells["3:8"] != cells["3:8"]
    assert '"value": null' in (files / "deltas.json").read_text()


def test_a_file_is_shown_and_nothing_written(files, capsys):
    before = sorted(path.name for path in files.iterdir())
    assert run_command(main, ["--input", "theirs.json"]) == 0
    assert "missing" in capsys.readouterr().out
    assert run_command(main, ["--input", "ours.json", "--minus", "theirs.json", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "deltas"
    assert sorted(path.name for path in files.iterdir()) == before


def test_both_layers_where_queries_and_passages_differ(capsys):
    cells = [Cell("s", "RR", Size(i, 8), i + j / 10, 5, passage_size=Size(j, 8)) for i in (1, 2) for j in (1, 3)]
    write_results("a.json", Results("grid", "a", cells))
    assert run_command(main, ["--input", "a.json"]) == 0
    head, columns, first, second = capsys.readouterr().out.splitlines()
    assert head == "s, RR, dim 8 (5 queries)" and columns.split()[-2:] == ["1", "3"]
    assert (first.split(), second.split()) == (["1", "1.1000", "1.3000"], ["2", "2.1000", "2.3000"])


def test_files_that_cannot_be_compared():
    other = Results("grid", "b", [Cell("nfcorpus", "nDCG@10", Size(1, 8), 0.1, 300)])
    write_results("other.json", other)
    with pytest.raises(UserError, match="no cell in common"):
        deltas("ours.json", "other.json")
    write_results("fewer.json", Results("grid", "b", [Cell("scifact", "nDCG@10", Size(1, 8), 0.1, 299)]))
    with pytest.raises(UserError, match="300 queries in ours"):
        deltas("ours.json", "fewer.json")
    write_results("deltas.json", deltas("ours.json", "theirs.json"))
    with pytest.raises(UserError, match="holds deltas already"):
        deltas("deltas.json", "theirs.json")
    twice = Cell("scifact", "nDCG@10", Size(1, 8), 0.1, 300)
    write_results("twice.json", Results("grid", "b", [twice, twice]))
    with pytest.raises(UserError, match="twice"):
        deltas("ours.json", "twice.json")
    with pytest.raises(UserError, match="no file"):
        deltas("ours.json", "nowhere.json")


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--minus", "ours.json"], "--input is missing"),
        (["--input", "ours.json", "--model_name_or_path", "m"], "--input reads a result file"),
        ([], "--model_name_or_path is missing"),
        (["--model_name_or_path", "m", "--dataset_path", "d", "--data", "x"], "--task sts"),
        (["--task", "sts", "--model_name_or_path", "m", "--asymmetric"], "--asymmetric belongs to --task retrieval"),
        (["--task", "sts", "--model_name_or_path", "m", "--measures", "RR"], "RR is no correlation"),
    ],
)
def test_flags_that_do_not_go_together(capsys, argv, what):
    assert run_command(main, argv) == 2
    assert what in capsys.readouterr().err
