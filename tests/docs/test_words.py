"""Code and documentation use the field's words: private ones that 0.1 had do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {
    r"doors?|run_door": "command, entry point",
    r"ladders?": "size list, sizes",
    r"rungs?": "size",
    r"taps?": "pooled output of a layer",
    r"(the|in|as|of) halves": "float16",
    r"proposers?": "candidate generator",
    r"strays|strangers": "out-of-corpus, unknown ids",
    r"tall(y|ies)": "statistics",
    r"no number": "NaN",
    r"knows no": "does not import, does not use",
    r"of its own accord": "built in",
    r"see the class": "a docstring that says what the method does",
}
_ANY = re.compile(
    rf"(?<![a-z0-9])(?:{'|'.join(f'(?P<w{i}>{word})' for i, word in enumerate(WORDS))})(?![a-z0-9])", re.IGNORECASE
)
FILES = sorted(
    path
    for pattern in ("starbucks_retrieval/**/*.py", "docs/**/*.md", "examples/**/*", "bench/*.py", "*.md", "Makefile")
    for path in ROOT.glob(pattern)
    if path.suffix in (".py", ".md", ".sh", "") and path.is_file()
)


def found(text: str) -> list[str]:
    """`line: word (say …)` for each forbidden word of a text."""
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]} (say: {list(WORDS.values())[int(match.lastgroup[1:])]})"
        for match in _ANY.finditer(text)
    ]


def test_the_words_of_the_field_are_used():
    complaints = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in found(path.read_text("utf-8"))]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("line", ["the same door", "self.run_door()", "a ladder's rungs", "tap_6", "See the class."])
def test_a_private_word_is_found(line):
    assert found(line)


@pytest.mark.parametrize("line", ["outdoors", "stapled", "untallied", "halved"])
def test_other_words_are_not(line):
    assert not found(line)
