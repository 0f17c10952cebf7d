"""Every UserError has a hint."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "starbucks_retrieval"
ERRORS = ("UserError", "BadRow")


def without_remedy(source: str) -> list[int]:
    """Lines that make an error without a remedy, or with an empty one."""
    lines: list[int] = []
    if not any(name in source for name in ERRORS):
        return lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "hint")]
            starred = any(isinstance(argument, ast.Starred) for argument in node.args)
            if not starred and (not given or (isinstance(given[0], ast.Constant) and not given[0].value)):
                lines.append(node.lineno)
    return lines


def test_every_error_has_a_remedy():
    found = {
        path.relative_to(PACKAGE).as_posix(): without_remedy(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")
    }
    assert len(found) > 100
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize("call", ['UserError("a")', 'UserError("a", "")', 'BadRow(f"{a}")', 'UserError("a", hint="")'])
def test_an_error_without_one_is_found(call):
    assert without_remedy(f"def f():\n    raise {call}\n") == [2]
    assert not without_remedy('raise UserError("a", "b")')
