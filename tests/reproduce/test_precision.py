"""`auto` as the precision of a table is an explicit one before jobs get their names, and stays the same in a folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from conftest import slow_except

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.models import precision
from starbucks_retrieval.reproduce import ReproduceArguments, api
from starbucks_retrieval.reproduce.__main__ import main
from starbucks_retrieval.reproduce.plan import Plan, make_plan
from starbucks_retrieval.reproduce.reading import FOLDER, read_scale, read_table

TABLE = """\
title: t
source: s
rows: [{name: bare}, {name: fitted, fit: {dtype: auto}}]
columns: [MS MARCO]
scales: {tiny: {measure: {retrieval: {dtype: auto}}}}
"""


def answer(monkeypatch, name: str | None) -> None:
    """Let the rule give an answer; None: it must not be asked."""
    answers = {"bf16": {"auto": torch.bfloat16}, "fp32": {"auto": None}, None: {}}[name]
    monkeypatch.setattr(precision, "autocast_dtype", lambda name, device: answers[name])


def planned(path: Path, root: Path) -> Plan:
    """Return the plan of a table of the study, without a look at its data."""
    table = read_table(path)
    scale = dataclasses.replace(read_scale("cpu", table, path), child=False)
    return make_plan(table, scale, 1, Path("nowhere"), root)


@pytest.mark.parametrize("rule", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "name",
    slow_except(
        ["zero-shot"], sorted(path.stem for path in (FOLDER / "tables/study").glob("*.yaml") if path.stem != "rows")
    ),
)
def test_jobs_are_those_of_a_table_that_names_its_precision(tmp_path, monkeypatch, rule, name):
    tables = shutil.copytree(FOLDER / "tables/study", tmp_path / "study")
    answer(monkeypatch, rule)
    automatic = planned(tables / f"{name}.yaml", tmp_path)
    for path in tables.iterdir():
        text = path.read_text().replace("bf16: auto", f"bf16: {str(rule == 'bf16').lower()}")
        path.write_text(text.replace("dtype: auto", f"dtype: {rule}"))
    answer(monkeypatch, None)
    explicit = planned(tables / f"{name}.yaml", tmp_path)
    assert [job.id for job in automatic.jobs()] == [job.id for job in explicit.jobs()]
    trainings = [job.command(tmp_path) for job in automatic.jobs() if job.stage == "train"]
    assert trainings and all(("--bf16 false" in command) == (rule == "fp32") for command in trainings)
    assert automatic.about == f"{explicit.about}; computed in {rule}"


def test_a_folder_keeps_the_precision_of_its_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(api, "run_jobs", lambda *_: None)
    (tmp_path / "t.yaml").write_text(TABLE)
    arguments = ReproduceArguments(str(tmp_path / "t.yaml"), output_dir=str(tmp_path / "out"))
    words = [arguments.table, "--output_dir", arguments.output_dir, "--dry_run"]
    for rule in ("fp32", "bf16"):  # a dry run keeps nothing
        answer(monkeypatch, rule)
        assert run_command(main, words) == 0
        assert f"; in {rule}" in capsys.readouterr().err
    found = api.reproduce(arguments)
    assert "computed in bf16" in found["markdown"]
    answer(monkeypatch, "fp32")
    assert {job.flags["dtype"] for job in api.plan_reproduction(arguments).jobs() if "dtype" in job.flags} == {"bf16"}
    (tmp_path / "out" / "precision.txt").write_text("damaged")
    assert api.plan_reproduction(arguments).precision == "fp32"
