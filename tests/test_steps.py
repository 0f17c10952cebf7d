"""Named steps in one folder: kept, run again and resumed."""

from __future__ import annotations

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.steps import Steps

OUTPUTS = {"base": ["data"], "top": ["out"]}


class Killed(BaseException):
    """Stands in for kill -9: no handler may catch it."""


def writes(folder, output, text, calls):
    def work():
        calls.append(text)
        (folder / output).mkdir(exist_ok=True)
        (folder / output / text).write_text(text)
        return {"text": text}

    return work


def run_both(folder, inputs, text, calls):
    """Figures of both steps, whose work writes files of the name `text`."""
    with Steps.open(folder, OUTPUTS, inputs, "x") as steps:
        base = steps.run("base", "first", writes(folder, "data", text, calls))
        return base, steps.run("top", "second", writes(folder, "out", text, calls), resumes=True), steps.seconds


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_steps_run_again_when_inputs_change(tmp_path):
    calls: list[str] = []
    first = run_both(tmp_path, {"x": 1, "sizes": (1, 2)}, "one", calls)
    assert run_both(tmp_path, {"x": 1, "sizes": (1, 2)}, "two", calls) == first
    assert first[:2] == ({"text": "one"}, {"text": "one"}) and set(first[2]) == {"base", "top"}
    run_both(tmp_path, {"x": 2}, "three", calls)
    assert calls == ["one", "one", "three", "three"]
    assert names(tmp_path / "data") == names(tmp_path / "out") == ["three"]


@pytest.mark.parametrize(("lost", "done"), [("data", ["two", "two"]), ("out", ["two"])])
def test_a_step_without_its_output_runs_again_with_all_later_steps(tmp_path, lost, done):
    calls: list[str] = []
    run_both(tmp_path, {}, "one", calls)
    (tmp_path / lost / "one").unlink()
    (tmp_path / lost).rmdir()
    run_both(tmp_path, {}, "two", calls)
    assert calls[2:] == done
    assert names(tmp_path / "out") == ["two"]


@pytest.mark.parametrize(("resumes", "left"), [(True, ["half", "whole"]), (False, ["whole"])])
def test_a_killed_step_resumes_or_starts_over(tmp_path, resumes, left):
    folder = tmp_path / "work"

    def killed():
        (folder / "out").mkdir()
        (folder / "out" / "half").touch()
        raise Killed

    with pytest.raises(Killed), Steps.open(folder, {"top": ["out"]}, {}, "x") as steps:
        steps.run("top", "title", killed, resumes)
    with Steps.open(folder, {"top": ["out"]}, {}, "x") as steps:
        steps.run("top", "title", writes(folder, "out", "whole", []), resumes)
    assert names(folder / "out") == left


@pytest.mark.parametrize("inputs", [{"x": 1}, {"x": 2}])
def test_a_kill_during_the_removal_of_outputs_revives_no_step(tmp_path, monkeypatch, inputs):
    calls: list[str] = []
    run_both(tmp_path, {"x": 1}, "one", calls)
    monkeypatch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        run_both(tmp_path, {"x": 2}, "two", calls)
    monkeypatch.undo()
    run_both(tmp_path, inputs, "three", calls)
    assert calls == ["one", "one", "three", "three"]
    assert names(tmp_path / "data") == names(tmp_path / "out") == ["three"]


def test_other_folders_and_files_are_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match="holds something else"), Steps.open(tmp_path, OUTPUTS, {}, "x"):
        pass
    assert names(tmp_path) == ["notes"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"), Steps.open(tmp_path / "file", OUTPUTS, {}, "x"):
        pass


def test_two_processes_in_one_folder_are_refused(tmp_path):
    with (
        Steps.open(tmp_path, OUTPUTS, {}, "x"),
        pytest.raises(UserError, match="another process is writing"),
        Steps.open(tmp_path, OUTPUTS, {}, "x"),
    ):
        pass


def test_each_command_refuses_the_folder_of_another(tmp_path):
    run_both(tmp_path, {}, "one", [])
    with pytest.raises(UserError, match="than the output of starbucks y"), Steps.open(tmp_path, OUTPUTS, {}, "y"):
        pass


def test_other_inputs_are_told(tmp_path, caplog):
    with caplog.at_level("INFO"):
        run_both(tmp_path, {"x": 1}, "one", [])
        assert "starting over" not in caplog.text
        run_both(tmp_path, {"x": 2}, "two", [])
    assert "starting over" in caplog.text


@pytest.mark.parametrize(
    "damage", [lambda text: text.replace('"two"', '["two"]'), lambda text: text[:-9], lambda text: "[]"]
)
def test_a_step_with_a_damaged_record_runs_again(tmp_path, damage):
    calls: list[str] = []
    run_both(tmp_path, {}, "two", calls)
    record = tmp_path / ".starbucks-x" / "top.json"
    record.write_text(damage(record.read_text()))
    assert run_both(tmp_path, {}, "three", calls)[1] == {"text": "three"}
    assert calls == ["two", "two", "three"]
