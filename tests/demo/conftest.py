"""A small made-up library whose documentation makes a collection."""

from __future__ import annotations

import random

import pytest


def function(name: str, summary: str, rest: str) -> str:
    return f'def {name}():\n    """{summary}.\n\n    {rest}\n    """\n\n\n'


def documented(rng: random.Random, names: list[str]) -> str:
    """Functions whose explanations use the words of their summaries, in another order and among others."""
    source = ""
    for name in names:
        words = [f"w{i}" for i in rng.sample(range(95), 26)]
        rest = words[:6] + words[6:]
        rng.shuffle(rest)
        source += function(name, " ".join(words[:6]), " ".join(rest))
    return source


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Ten top-level modules with eight documented functions each; every second one is a package."""
    folder = tmp_path_factory.mktemp("library")
    rng = random.Random(7)
    modules = []
    for number in range(10):
        names = [f"f{i}" for i in range(8)]
        if number % 2:
            path = folder / f"module{number}.py"
            path.write_text(documented(rng, names))
        else:
            path = folder / f"module{number}"
            (path / "inner").mkdir(parents=True)
            (path / "__init__.py").write_text(documented(rng, names[:4]))
            (path / "inner" / "__init__.py").write_text("")
            (path / "inner" / "deep.py").write_text(documented(rng, names[4:]))
        modules.append(path)
    return modules
