"""Registries: names of this package, of a program that calls `register`, and of installed packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from starbucks_retrieval import UserError, registry
from starbucks_retrieval.registry import Registry


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    return Registry("shapes", "shape", {"path": ("pathlib:PurePath", "a path"), "odd": ("no.such.module:thing", "")})


def test_a_target_is_imported_on_first_use(made):
    sys.modules.pop("colorsys", None)
    made.register("colour", "colorsys:rgb_to_hsv", help="a colour")
    assert list(made) == ["path", "odd", "colour"] and "colorsys" not in sys.modules
    assert made["colour"](0, 0, 0) == (0.0, 0.0, 0) and "colorsys" in sys.modules


def test_a_registered_object_is_returned(made):
    made.register("tuple", tuple)
    assert made["tuple"] is tuple and "tuple" in made
    made.register("tuple", tuple)  # the same again, as when a notebook's cell runs twice


def test_a_taken_name_is_refused(made):
    with pytest.raises(ValueError, match="'path' is registered already: pathlib:PurePath"):
        made.register("path", dict)


def test_the_error_of_an_unknown_name_suggests_the_nearest(made):
    with pytest.raises(UserError, match="unknown shape 'pth'") as refused:
        made["pth"]
    assert refused.value.hint == "use path; known: path, odd"


@pytest.mark.parametrize(
    ("target", "why"), [("no.such.module:thing", "No module named 'no'"), ("math:no_such_name", "no_such_name")]
)
def test_a_target_that_cannot_be_imported_is_named(made, target, why):
    made.register("plug-in", target)
    with pytest.raises(UserError, match=f"the shape 'plug-in' cannot be loaded from {target}: .*{why}") as refused:
        made["plug-in"]
    assert "package that adds it" in refused.value.hint


def test_help_is_listed_for_flags(made):
    assert made.help("path") == "a path"
    assert made.help_text() == "path: a path; odd"


def test_entry_points_of_installed_packages_are_found(monkeypatch):
    point = EntryPoint("circle", "math:hypot", "starbucks_retrieval.shapes")
    asked = []
    monkeypatch.setattr(registry, "entry_points", lambda group: asked.append(group) or [point])
    shapes = Registry("shapes", "shape", {"path": ("pathlib:PurePath", "a path")})
    assert list(shapes) == ["path", "circle"] and shapes["circle"](3, 4) == 5
    assert asked == ["starbucks_retrieval.shapes"]


def test_a_name_of_this_package_is_not_replaced_by_an_entry_point(monkeypatch):
    point = SimpleNamespace(name="path", value="math:hypot", dist=SimpleNamespace(name="elsewhere"))
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    shapes = Registry("shapes", "shape", {"path": ("pathlib:PurePath", "a path")})
    assert shapes["path"].__name__ == "PurePath" and shapes.help("path") == "a path"
