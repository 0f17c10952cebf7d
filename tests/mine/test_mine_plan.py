"""mine --dry_run: what is said, refusals, and nothing written."""

from __future__ import annotations

import json

import pytest

from starbucks_retrieval.models import info


def test_bm25(beir, run_mine, tmp_path):
    pytest.importorskip("bm25s")
    output = tmp_path / "out" / "rows.jsonl"
    argv = ["--dataset_path", beir, "--bm25", "--bm25_backend", "bm25s", "--depth", "20", "--num_negatives", "5"]
    status, told, _ = run_mine(*argv, "--output_path", output, "--dry_run")
    assert status == 0 and not output.parent.exists()
    assert (told["dry_run"], told["groups"], told["passages"], told["depth"]) == (True, 12, 60, 20)
    assert told["candidates_from"] == "BM25 by bm25s" and told["seconds"] is None
    assert told["candidate_bytes"] == 12 * 20 * 8
    status, done, _ = run_mine(*argv, "--output_path", output)
    assert status == 0 and done["queries"] == told["groups"]
    assert told["bytes"] == pytest.approx(output.stat().st_size, rel=0.35)
    status, _, err = run_mine(*argv, "--output_path", output, "--dry_run")
    assert status == 2 and "exists" in err
    status, told, _ = run_mine(*argv, "--output_path", output, "--dry_run", "--overwrite")
    assert status == 0 and told["exists"] and told["candidates_there"]


def test_a_model_is_timed_and_a_run_is_not(beir, run_mine, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(info.ModelInfo, "layer_seconds", lambda *_: 1e-3)
    argv = ["--dataset_path", beir, "--output_path", tmp_path / "rows.jsonl", "--dry_run"]
    status, told, _ = run_mine(*argv, "--model_name_or_path", tiny_bert, "--size", "2:16")
    assert status == 0 and told["candidates_from"].endswith("at 2:16")
    assert 12 * 3 * 2e-3 < told["seconds"] < 72 * 30 * 2e-3
    (tmp_path / "r.trec").write_text("q Q0 d 1 1 t\n")
    status, told, _ = run_mine(*argv, "--run", tmp_path / "r.trec")
    assert status == 0 and told["seconds"] is None
    assert run_mine(*argv, "--run", tmp_path / "none.trec")[0] == 2
    assert run_mine(*argv, "--model_name_or_path", tiny_bert, "--size", "9:16")[0] == 2


def test_text_for_a_terminal(beir, tmp_path, capsys):
    from starbucks_retrieval.cli import run_command
    from starbucks_retrieval.mine.__main__ import main

    (tmp_path / "r.trec").write_text("q Q0 d 1 1 t\n")
    argv = [
        "--dataset_path",
        str(beir),
        "--output_path",
        str(tmp_path / "o.jsonl.gz"),
        "--run",
        str(tmp_path / "r.trec"),
    ]
    assert run_command(main, [*argv, "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "before gzip" in out and "60 passages" in out and json.dumps(out)
