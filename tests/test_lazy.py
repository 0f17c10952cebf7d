"""Names that packages import on first use: found at run time under the name that type checkers read."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import starbucks_retrieval

ROOT = Path(starbucks_retrieval.__file__).parent
PACKAGES = {
    ".".join(("starbucks_retrieval", *path.parent.relative_to(ROOT).parts)): path
    for path in sorted(ROOT.rglob("__init__.py"))
    if "lazy_exports(" in path.read_text(encoding="utf-8")
}
# Packages for the commands of this one: the documentation of the Python API does not name them.
NOT_PUBLIC = {
    f"starbucks_retrieval.{name}"
    for name in ("data.formats", "metrics", "pages", "search.engines", "sentences", "trainer")
}


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_read_the_imports_that_first_use_makes(name):
    package, tree = importlib.import_module(name), ast.parse(PACKAGES[name].read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: line.module for line in guarded.body if isinstance(line, ast.ImportFrom) for alias in line.names
    }
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_exports"
    )
    lazy = ast.literal_eval(call.args[1])
    assert {exported: f"{name}{module}" for exported, module in lazy.items()}.items() <= imported.items()
    assert set(lazy) <= set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize(
    "name",
    [
        ".".join(("starbucks_retrieval", *path.parent.relative_to(ROOT).parts))
        for path in sorted(ROOT.rglob("__init__.py"))
    ],
)
def test_completion_shows_the_public_names_only(name, monkeypatch):
    package = importlib.import_module(name)
    if name in NOT_PUBLIC:
        assert not hasattr(package, "__all__")
        return
    monkeypatch.setattr(package, "a_module_that_was_imported", object(), raising=False)
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_can_be_imported(name):
    package = importlib.import_module(name)
    assert all(getattr(package, exported) is not None for exported in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018
