"""Parts: kept when nothing changed, done again when something did, safe to kill."""

from __future__ import annotations

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.demo.parts import Parts


class Killed(BaseException):
    """Stands in for kill -9: nothing of ours may catch it."""


def writes(folder, text, calls):
    def work():
        calls.append(text)
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out" / text).write_text(text)
        return {"text": text}

    return work


def test_a_part_is_kept_until_its_inputs_or_outputs_change(tmp_path):
    calls: list[str] = []
    with Parts.open(tmp_path / "demo") as parts:
        first = parts.run("a", {"x": 1, "sizes": (1, 2)}, ["out"], writes(parts.folder, "one", calls))
    with Parts.open(tmp_path / "demo") as parts:
        again = parts.run("a", {"x": 1, "sizes": (1, 2)}, ["out"], writes(parts.folder, "two", calls))
        assert (again.figures, again.key, again.kept, first.kept) == (first.figures, first.key, True, False)
        changed = parts.run("a", {"x": 2}, ["out"], writes(parts.folder, "three", calls))
        assert changed.key != first.key
        assert [path.name for path in (parts.folder / "out").iterdir()] == ["three"]
        (parts.folder / "out" / "three").unlink()
        (parts.folder / "out").rmdir()
        parts.run("a", {"x": 2}, ["out"], writes(parts.folder, "four", calls))
    assert calls == ["one", "three", "four"]


@pytest.mark.parametrize(("resumes", "left"), [(True, ["half", "whole"]), (False, ["whole"])])
def test_a_killed_part_resumes_or_starts_over(tmp_path, resumes, left):
    folder = tmp_path / "demo"

    def killed():
        (folder / "out").mkdir()
        (folder / "out" / "half").touch()
        raise Killed

    with pytest.raises(Killed), Parts.open(folder) as parts:
        parts.run("a", {"x": 1}, ["out"], killed, resumes)
    with Parts.open(folder) as parts:
        parts.run("a", {"x": 1}, ["out"], writes(folder, "whole", []), resumes)
    assert sorted(path.name for path in (folder / "out").iterdir()) == left


def test_a_kill_while_old_outputs_are_removed_does_not_bring_the_old_part_back(tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    calls: list[str] = []
    with Parts.open(folder) as parts:
        parts.run("a", {"x": 1}, ["out"], writes(folder, "one", calls))
    monkeypatch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed), Parts.open(folder) as parts:
        parts.run("a", {"x": 2}, ["out"], writes(folder, "two", calls))
    monkeypatch.undo()
    with Parts.open(folder) as parts:
        parts.run("a", {"x": 1}, ["out"], writes(folder, "one", calls))
    assert calls == ["one", "one"]


def test_a_part_built_on_another_follows_it(tmp_path):
    calls: list[str] = []
    with Parts.open(tmp_path) as parts:
        for x in (1, 1, 2):
            base = parts.run("base", {"x": x}, [], lambda: calls.append("base") or {})
            parts.run("top", {"base": base.key}, [], lambda: calls.append("top") or {})
    assert calls == ["base", "top", "base", "top"]


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match="holds something else"), Parts.open(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"), Parts.open(tmp_path / "file"):
        pass


def test_two_demonstrations_in_one_folder_are_refused(tmp_path):
    with (
        Parts.open(tmp_path),
        pytest.raises(UserError, match="another process is writing"),
        Parts.open(tmp_path),
    ):
        pass
