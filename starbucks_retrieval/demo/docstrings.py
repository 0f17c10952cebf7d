"""From Python source to pairs of summary and explanation, by parsing alone: importing would run code."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MIN_SUMMARY, _MAX_SUMMARY, _MIN_PASSAGE = 4, 40, 20  # words
_TEST = re.compile(r"(^|_)(tests?|testing|conftest)($|_)")

# The end of a sentence, which "e.g." is not.
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?](?=\s+[^a-z\s])")
_SIGNATURE = re.compile(r"[\w.]+\s?\(.*\)|.*->")
_RULE = re.compile(r"([=\-~*#^_])\1{2}")
_ROLE = re.compile(r":[a-z:]+:`~?([^`<]*?)(?:\s*<[^`]*>)?`")
_LINK = re.compile(r"\[`?~?([\w.]+)`?\]")
_MARKUP = re.compile(r"`+|\*\*|\|")

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Entry:
    """One docstring: the dotted name of what it documents, its summary line, and the rest without that line."""

    docid: str
    module: str
    summary: str
    passage: str


def source_files(module: Path) -> list[Path]:
    """The public source files of a top-level module, sorted; tests and private ones are left out."""
    if module.is_file():
        return [module]
    return sorted(path for path in module.rglob("*.py") if _is_public(path.relative_to(module)))


def _is_public(path: Path) -> bool:
    parts = [*path.parts[:-1], *([] if path.name == "__init__.py" else [path.stem])]
    return all(part.isidentifier() and not part.startswith("_") and not _TEST.search(part) for part in parts)


def read_entries(module: Path, path: Path) -> Iterator[Entry]:
    """The usable docstrings of one file of a top-level module; none for a file that does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return
    below = path.relative_to(module).with_suffix("").parts if module.is_dir() else ()
    dotted = ".".join((module.stem, *(part for part in below if part != "__init__")))
    seen: set[str] = set()
    for name, node in _documented(tree, dotted):
        pair = split_docstring(ast.get_docstring(node) or "")
        if pair and name not in seen:
            seen.add(name)
            yield Entry(name, module.stem, *pair)


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, _Documented]]:
    """A module or class with everything public in it; the insides of functions are nobody's documentation."""
    if isinstance(node, _Documented):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _documented(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield f"{name}.{child.name}", child
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _documented(child, name)


def split_docstring(text: str) -> tuple[str, str] | None:
    """(summary, the rest without it), or None where one of the two is missing, too short, or no prose."""
    first, _, rest = text.strip().partition("\n\n")
    if _RULE.search(first):
        return None
    first = " ".join(first.split())
    end = _END.search(first)
    summary, remainder = (first[: end.end()], first[end.end() :]) if end else (first, "")
    summary = _MARKUP.sub("", _LINK.sub(r"\1", _ROLE.sub(r"\1", summary))).strip(" .:")
    passage = f"{remainder.strip()}\n\n{rest.strip()}".strip()
    if not _MIN_SUMMARY <= len(summary.split()) <= _MAX_SUMMARY or len(passage.split()) < _MIN_PASSAGE:
        return None
    if _SIGNATURE.match(summary) or normal(summary) in normal(passage) or not _is_utf8(text):
        return None
    return summary, passage


def normal(text: str) -> str:
    """Words in lower case, for telling whether two texts say the same."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which no file of ours can hold
        return False
    return True
