"""grid --dry_run: figures that the real run then keeps to, refusals, and nothing written."""

from __future__ import annotations

import json

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.grid.__main__ import main
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.models import info


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(info.ModelInfo, "layer_seconds", lambda *_: 1e-3)
    return tmp_path / "here"


def previewed(capsys, *argv):
    assert run_command(main, [*map(str, argv), "--dry_run", "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_it_says_is_what_is_done(tiny_bert, beir, here, capsys):
    argv = ["--model_name_or_path", tiny_bert, "--dataset_path", beir, "--layers", "1,3", "--dims", "4,16"]
    told = previewed(capsys, *argv)
    assert not list(here.iterdir())
    assert (told["layers"], told["dims"], told["cells"], told["exists"]) == ([1, 3], [4, 16], 4, False)
    texts = {part["kind"]: part for part in told["texts"]}
    assert told["seconds"] == pytest.approx(
        sum(part["texts"] * part["mean_tokens"] * 3 * 1e-3 for part in texts.values()), rel=0.01
    )
    assert run_command(main, [*map(str, argv), "--quiet", "--keep_work_dir"]) == 0
    capsys.readouterr()
    assert len(read_results("grid.json").cells) == told["cells"]
    vectors = sum(path.stat().st_size - 128 for path in here.rglob("*.vectors.npy"))
    assert vectors == told["bytes"]
    again = previewed(capsys, *argv)
    assert again["exists"] and again["seconds"] == 0  # the embeddings are there


def test_scored_pairs(tiny_bert, here, capsys):
    (here / "p.tsv").write_text("score\tsentence1\tsentence2\n1\tw1\tw2\n2\tw1\tw3\n3\tw2\tw3\n")
    argv = ["--task", "sts", "--model_name_or_path", tiny_bert, "--data", "p.tsv", "--layers", "2", "--dims", "4,8"]
    told = previewed(capsys, *argv)
    assert (told["pairs"], told["sentences"], told["cells"]) == ({"p": 3}, 3, 2)
    assert told["seconds"] == pytest.approx(3 * told["mean_tokens"] * 2 * 1e-3)
    assert [path.name for path in here.iterdir()] == ["p.tsv"]


def test_text_for_a_terminal_and_refusals(tiny_bert, beir, capsys):
    argv = ["--model_name_or_path", str(tiny_bert), "--dataset_path", str(beir), "--dry_run"]
    assert run_command(main, [*argv, "--measure_cost"]) == 0
    out = capsys.readouterr().out
    assert "removed at the end" in out and "without scoring and timing (--measure_cost)" in out
    assert run_command(main, [*argv, "--layers", "9"]) == 2
    assert run_command(main, ["--input", "a.json", "--dry_run"]) == 2
