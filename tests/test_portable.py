"""Every module can be imported on Windows and macOS: what only one system has is imported where it is used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import starbucks_retrieval

PACKAGE = Path(starbucks_retrieval.__file__).parent
# Modules of the standard library that some systems lack.
SOME_SYSTEMS = {
    "crypt",
    "fcntl",
    "grp",
    "msvcrt",
    "posix",
    "pty",
    "pwd",
    "resource",
    "syslog",
    "termios",
    "tty",
    "winreg",
}
NAMED = re.compile(rf"\b({'|'.join(SOME_SYSTEMS)})\b")


def imported_at_once(source: str) -> set[str]:
    """The top-level names that importing a module imports, except where an ImportError is caught."""
    found: set[str] = set()
    left: list[ast.AST] = list(ast.parse(source).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.If | ast.ClassDef | ast.With):
            left += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_of_one_system_is_imported_at_once(path):
    source = path.read_text(encoding="utf-8")
    # Parsing takes most of the time, and few modules so much as name one of these.
    assert not (NAMED.search(source) and imported_at_once(source) & SOME_SYSTEMS)


def test_such_an_import_is_found():
    assert NAMED.search("import os, fcntl")
    assert imported_at_once("import os, fcntl\nif True:\n    from pwd import getpwnam") >= {"fcntl", "pwd"}
    assert not imported_at_once(
        "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None\ndef f():\n    import pwd"
    )
