"""export --dry_run: what is said is what is then written."""

from __future__ import annotations

import json

import pytest
from export.exports import model_of

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.export.__main__ import main


def test_what_it_says_is_what_is_written(tmp_path, capsys):
    encoder = model_of(tmp_path / "model")
    argv = ["--model_name_or_path", encoder.name, "--to", "transformers", "--size", "2:16"]
    argv += ["--output_dir", str(tmp_path / "out"), "--json", "--quiet"]
    before = sorted(tmp_path.rglob("*"))
    assert run_command(main, [*argv, "--dry_run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    assert run_command(main, argv) == 0
    done = json.loads(capsys.readouterr().out)
    same = ("size", "to", "parameters_kept", "parameters_total", "output", "int8")
    assert {name: told[name] for name in same} == {name: done[name] for name in same}
    weights = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert told["bytes"] == pytest.approx(weights, rel=0.25)  # a pooler of zeros comes on top
    assert run_command(main, [*argv, "--dry_run"]) == 2  # an earlier export is there
    capsys.readouterr()
    assert run_command(main, [*argv, "--dry_run", "--overwrite_output_dir"]) == 0
    assert json.loads(capsys.readouterr().out)["exists"]


@pytest.mark.parametrize(("more", "what"), [(["--size", "9:8"], "9"), (["--size", "1:8,2:8"], "names 2 sizes")])
def test_refusals(tiny_bert, tmp_path, capsys, more, what):
    argv = ["--model_name_or_path", str(tiny_bert), "--to", "transformers", "--output_dir", str(tmp_path / "o")]
    assert run_command(main, [*argv, *more, "--dry_run"]) == 2
    assert what in capsys.readouterr().err


def test_text_for_a_terminal(tiny_bert, tmp_path, capsys):
    argv = ["--model_name_or_path", str(tiny_bert), "--to", "sentence-transformers", "--size", "2:16"]
    hub = ["--push_to_hub", "--hub_model_id", "me/small"]
    assert run_command(main, [*argv, *hub, "--output_dir", str(tmp_path / "o"), "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "parameters are kept at 2:16" in out and "the folder to me/small" in out and "not estimated" in out
