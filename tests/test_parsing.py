"""The loaders of JSON, YAML and small text files: what they refuse, and what their messages say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.cli.config import convert, load_config
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import Count, FileName, Finite, check_value, parse_json, read_json, shown
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.yaml_text import parse_yaml


@dataclasses.dataclass(frozen=True)
class Inner:
    rows: Count
    file: FileName = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    shards: list[Inner]
    scale: Finite
    size: Size | None = None

    def __post_init__(self) -> None:
        if self.scale == 7:
            raise UserError("a scale of 7 is not possible", "use another")


def test_json_of_a_dataclass():
    text = '{"shards": [{"rows": 1, "file": "b.npy"}], "scale": 2, "size": "2:32", "more": 1}'
    assert parse_json(text, Outer, "a.json") == Outer([Inner(1, "b.npy")], 2.0, Size(2, 32))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", r"a.json: malformed JSON at line 1 \(EOF"),
        ("\n\n[1,]", r"a.json: malformed JSON at line 3 \(trailing comma\)"),
        ("[" * 100_000, "recursion limit"),
        ('{"shards": [{"rows": "x"}], "scale": 1}', r"a.json: shards\[0\].rows is 'x', expected a valid integer"),
        ('{"shards": [{"rows": true}], "scale": 1}', r"shards\[0\].rows is True, expected a valid integer"),
        ('{"shards": [{"rows": 1.5}], "scale": 1}', r"shards\[0\].rows is 1.5, expected a valid integer"),
        ('{"shards": [{"rows": -1}], "scale": 1}', r"shards\[0\].rows is -1, expected greater than or equal to 0"),
        ('{"shards": [{"rows": 999999999999999999}], "scale": 1}', "expected less than or equal to"),
        ('{"shards": [{"rows": ' + "9" * 5000 + '}], "scale": 1}', r"malformed JSON at line 1 \(number out of range\)"),
        ('{"shards": [{"rows": 1, "file": "../x"}], "scale": 1}', r"shards\[0\].file is '../x'"),
        ('{"shards": [], "scale": Infinity}', "scale is inf, expected less than or equal to"),
        ('{"shards": [], "scale": NaN}', "scale is nan"),
        ('{"shards": []}', "a.json: scale is missing"),
        ('{"shards": [], "scale": 7}', "a.json: a scale of 7 is not possible"),
        ('{"shards": [], "scale": 1, "size": "six"}', "a.json: cannot read the size 'six'"),
        ("[]", r"a.json: its content is \[\], expected an object"),
        ('{"a": "\\ud800"}', "malformed JSON"),
    ],
)
def test_other_json_is_refused_with_its_key(text, what):
    with pytest.raises(UserError, match=what):
        parse_json(text, Outer, "a.json")


def test_unknown_keys_can_be_refused():
    with pytest.raises(UserError, match=r"a\.json is damaged: unknown key rws"):
        parse_json('{"rows": 1, "rws": 2}', Inner, "a.json", problem="is damaged", extra="forbid")


def test_values_that_were_read_as_plain_data():
    assert check_value(None, Count | None, "a.json: rows") is None
    with pytest.raises(UserError, match=r"a\.json: rows: its content is '3', expected a valid integer"):
        check_value("3", Count, "a.json: rows")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [" + "[" * 5000, "nested more than 50 deep"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("a: &a [*a]", "nested more than 50 deep"),
        ("a: !!python/object:os.system x", "the tag .* is not supported"),
        ("a: !!binary '*'", "the tag .* is not supported"),
        ("a: !!timestamp x", "the tag .* is not supported"),
        ("b: 1\na: !!int abc", r"not a value of type int .* line 2, column 4"),
        ("a: " + "9" * 5000, "not a value of type int"),
        ("a: 0x" + "f" * 5000, "not a value of type int"),
        ("a: 99999999999999999999", "not a value of type int"),
        ("a: =", "could not determine"),
        ("<<: 3", "expected a mapping"),
        ("{[a]: 1}", "unhashable key"),
        ("a: \0", "unacceptable character"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n" for old, new in ("ab", "bc", "cd", "de")), "100,000 values"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused(text, what):
    with pytest.raises(UserError, match=f"a.yaml: .*{what}"):
        parse_yaml(text, "a.yaml")


def test_dates_and_sizes_of_yaml_are_texts():
    text = "a: 2001-13-45\nb: 2001-01-01\nc: 2:32\nd: &x [1, 2]\ne: *x\nf: .inf\ng: 1_000\n"
    found: dict[str, Any] = {"a": "2001-13-45", "b": "2001-01-01", "c": "2:32", "d": [1, 2], "e": [1, 2]}
    assert parse_yaml(text, "a.yaml") == found | {"f": float("inf"), "g": 1000}
    assert parse_yaml("", "a.yaml") is None


@pytest.mark.parametrize(
    ("value", "scalar"),
    [
        *((float("inf"), int), (float("nan"), int), (2.5, int), (True, int), (True, float), ("x", float), ([1], str)),
        *(("a\0b", str), ("\ud800", str)),
    ],
)
def test_values_of_a_configuration_file_that_do_not_fit_their_flag(value, scalar):
    with pytest.raises(UserError, match=f"a.yaml: depth: .* is not of type {scalar.__name__}"):
        convert("a.yaml: depth", [value], list[scalar])


def test_whole_numbers_may_be_written_as_floats():
    assert convert("a.yaml: depth", 10.0, int) == 10


def test_a_value_in_a_message_is_short():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, 10**4000, {"a": ["x" * 1000] * 1000}, b"x" * 10**6):
        assert len(shown(value)) <= 61
    while deep:
        deep = deep[0]


def test_messages_have_two_lines_whatever_a_file_holds(capsys):
    def read(_: Any) -> None:
        raise UserError("a.tsv: " + "\x1b[31m" + "x\n" * 5000, "first\nsecond")

    assert run_command(read, []) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "\x1b" not in lines[0] and len(lines[0]) < 1100 and lines[1] == "  try: first second"


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_long_paths(tmp_path, capsys, name):
    def config(_: Any) -> None:
        load_config(f"{tmp_path}/{name}.yaml")

    def file(_: Any) -> None:
        read_json(f"{tmp_path}/{name}")

    for read in (config, file):
        assert run_command(read, []) == 2
        assert len(capsys.readouterr().err.splitlines()) == 2


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff")
    for path, what in (("a.json", "is not UTF-8"), ("b.json", "no such file"), (".", "is a folder")):
        with pytest.raises(UserError, match=what):
            read_json(tmp_path / path)
