"""Flags from the command line and from configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from starbucks_retrieval.cli import CommonArguments, flag, parse_flags
from starbucks_retrieval.errors import UserError


@dataclass
class Settings:
    """Settings."""

    name: str = flag("", "a name", required=True)
    rate: float | None = flag(None, "a rate")
    many: list[str] | None = flag(None, "several")
    kind: Literal["a", "b"] = flag("a", "a kind")
    switch: bool = flag(False, "a switch at 50%")


def parse(*argv, extra=False):
    (settings,), rest = parse_flags([Settings], argv, "prog", "description", extra=extra)
    return settings, rest


def test_flags_with_underscores_dashes_and_repeats():
    settings, _ = parse("--name", "x", "--rate=0.5", "--many", "1", "2", "--many", "3", "--switch")
    assert settings == Settings("x", 0.5, ["1", "2", "3"], "a", True)
    (common,), _ = parse_flags([CommonArguments], ["--log-level", "error"], "prog", "")
    assert common.log_level == "error"
    assert parse("--name", "x", "--switch", "false")[0].switch is False


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_flags_override_the_values_of_a_file(tmp_path, suffix):
    path = tmp_path / f"config{suffix}"
    path.write_text('{"name": "file", "rate": 1, "many": ["p", "q"], "learning_rate": 0.1, "switch": true}')
    settings, rest = parse(str(path), "--name", "flag", extra=True)
    assert settings == Settings("flag", 1.0, ["p", "q"], "a", True)
    assert rest == ["--learning_rate", "0.1"]
    with pytest.raises(UserError, match="learning_rate"):
        parse(str(path))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "--name is missing"),
        (("--name", "x", "--rate", "fast"), "rate"),
        (("--name", "x", "--kind", "c"), "invalid choice"),
        (("--name", "x", "--switch", "maybe"), "neither true nor false"),
        (("--name", "x", "--nam", "y"), "--nam"),
        (("absent.yaml",), "no such file"),
        (("words",), "unexpected argument"),
    ],
)
def test_bad_flags_are_user_errors(argv, message):
    with pytest.raises(UserError, match=message) as caught:
        parse(*argv)
    assert caught.value.hint


def test_a_size_in_a_file_is_not_a_number_to_base_60(tmp_path):
    (tmp_path / "config.yaml").write_text("name: 2:32\nrate: -1.5e-3\nmany: [1:08, 12:59, 7]")
    assert parse(str(tmp_path / "config.yaml"))[0] == Settings("2:32", -1.5e-3, ["1:08", "12:59", "7"])


def test_the_error_of_a_misspelt_flag_suggests_the_nearest(tmp_path):
    for wrong in ("--swich", "--swich=1"):
        with pytest.raises(UserError, match=r"^unknown argument --swich\n") as caught:
            parse("--name", "x", wrong)
        assert caught.value.hint == "--switch, or see prog --help"
    with pytest.raises(UserError, match="--zzz") as caught:
        parse("--name", "x", "--zzz")
    assert caught.value.hint == "see prog --help"
    (tmp_path / "config.yaml").write_text("name: x\nrates: 2")
    with pytest.raises(UserError, match="'rates'") as caught:
        parse(str(tmp_path / "config.yaml"))
    assert caught.value.hint == "rate, or see prog --help"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "mapping"),
        ("a: [", "config.yaml"),
        ("format: starbucks-results", "that a command wrote"),
        ("name: x\nkind: z", "not one of"),
        ("name: x\nswitch: 3", "neither true nor false"),
        ("name: [x, y]", "one value"),
        ("name: x\nrate: fast", "not of type float"),
    ],
)
def test_bad_files_are_user_errors(tmp_path, content, message):
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        parse(str(tmp_path / "config.yaml"))
    assert str(tmp_path / "config.yaml") in caught.value.what and caught.value.hint


def test_choices_of_a_flag_come_from_a_registry(tmp_path):
    names = ["one", "two"]

    @dataclass
    class Arguments:
        """Flags."""

        which: str = flag("one", "which", choices=names)
        other: str = flag("auto", "other", choices=lambda: ("auto", *names))

    def parse(*words):
        return parse_flags([Arguments], words, "prog", "")[0][0]

    names.append("three")  # as a plug-in does, after the class was made
    assert parse("--which", "three", "--other", "two") == Arguments("three", "two")
    with pytest.raises(UserError, match="invalid choice: 'four'"):
        parse("--which", "four")
    (tmp_path / "a.yaml").write_text("which: four\n")
    with pytest.raises(UserError, match="'four' is not one of one, two, three"):
        parse(str(tmp_path / "a.yaml"))
