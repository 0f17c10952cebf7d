"""The text of --help: examples that parse, flags in order of need, as wide as the terminal."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import pytest

from starbucks_retrieval import cli
from starbucks_retrieval.__main__ import _EXAMPLES, _main
from starbucks_retrieval.cli import flag
from starbucks_retrieval.cli.checks import training_flags
from starbucks_retrieval.cli.flags import parser_for
from starbucks_retrieval.cli.help import RARE
from starbucks_retrieval.completion import stage_parsers
from starbucks_retrieval.sizes import SIZE_ALIASES

PARSERS = {" ".join(words): parser for words, _, parser in stage_parsers() if parser is not None}
ALL = pytest.mark.parametrize("name", PARSERS)
COMMON = (cli.CommonArguments.__doc__ or "").rstrip(".")


@dataclass
class Basis:
    """Basis."""

    inherited: str | None = flag(None, "inherited")


@dataclass
class Own(Basis):
    """Own"""

    common: list[str] = flag(help="common", factory=lambda: ["a", "b"])
    seldom: bool = flag(False, "seldom", rare=True)
    switch: bool = flag(True, "switch")
    needed: str = flag("", "needed", required=True)


def flags_by_heading(parser):
    return {
        group.title: [action.option_strings[-1] for action in group._group_actions]
        for group in parser._action_groups
        if group._group_actions
    }


def test_flags_are_in_order_of_need(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    parser = parser_for(
        [Own, cli.CommonArguments],
        "starbucks x",
        "Words.",
        ["starbucks x --needed y --common a-b c-d e-f g-h"],
        "Notes.",
    )
    assert flags_by_heading(parser) == {
        "Own": ["--needed", "--common", "--switch", "--inherited"],
        RARE: ["--seldom"],
        COMMON: ["--seed", "--log_level", "--quiet", "--json", "--help"],
    }
    head, _, flags = parser.format_help().partition("Own:\n")
    assert head == (
        "usage: starbucks x [flags]\n\nWords.\n\nExamples:\n  starbucks x --needed y \\\n      --common a-b c-d e-f g-h\n\nNotes.\n\n"
    )
    flags = " ".join(flags.split())
    assert flags.startswith(
        "--needed STR needed (required) --common STR … common (default: a b) --switch [true|false] switch"
    )
    assert f"{RARE}: --seldom seldom Flags" in flags


@ALL
def test_every_command_has_examples_with_its_own_flags(name):
    parser, training = PARSERS[name], training_flags() if name in ("train", "pretrain") else ()
    known = {option.removeprefix("--") for option in parser._option_string_actions} | set(training)
    assert parser.examples
    for example in parser.examples:
        words = shlex.split(example, comments=True)
        assert words[: 1 + len(name.split())] == ["starbucks", *name.split()], example
        assert {word.removeprefix("--") for word in words if word.startswith("--")} <= known, example


@ALL
def test_required_flags_are_first_and_rare_ones_have_a_heading_of_their_own(name):
    parser = PARSERS[name]
    headings = list(flags_by_heading(parser))
    assert headings[-1] == COMMON and RARE not in headings[:-2]
    for group in parser._action_groups:
        required = ["(required)" in (action.help or "") for action in group._group_actions]
        assert required == sorted(required, reverse=True), group.title
        assert group.title != RARE or not any(required)


@pytest.mark.parametrize("width", [80, 120])
@ALL
def test_help_is_as_wide_as_the_terminal(name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = PARSERS[name].format_help()
    assert text.index("\nExamples:\n") < min(text.index(f"\n{title}:\n") for title in flags_by_heading(PARSERS[name]))
    # A redirection has no flag before which its line could be broken.
    assert not [line for line in text.splitlines() if len(line) > width and " > " not in line]


def test_help_that_names_size_aliases_lists_them():
    named = 0
    for name, parser in PARSERS.items():
        for action in parser._actions:
            if re.search(r"\balias", action.help or ""):
                named += 1
                assert ", ".join(SIZE_ALIASES) in action.help, (name, action.dest)
    assert named >= 4


def test_the_command_without_a_stage_shows_examples_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _main(["--help"])
    printed = capsys.readouterr().out
    assert printed.index("Examples:") < printed.index("Stages")
    assert all(len(line) <= 80 for line in printed.splitlines())
    for example in _EXAMPLES:
        words = shlex.split(example)
        assert {word for word in words if word.startswith("--")} <= set(PARSERS[words[1]]._option_string_actions)
