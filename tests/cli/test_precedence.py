"""The value and the source of a flag that several layers set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from starbucks_retrieval.cli import flag
from starbucks_retrieval.cli.precedence import Default, flag_sources, parse_training, resolve
from starbucks_retrieval.errors import UserError


@dataclass
class Settings:
    """Settings."""

    preset: str | None = flag(None, "a preset")
    rate: float | None = flag(None, "a rate")
    kind: Literal["a", "b"] = flag("a", "a kind")
    many: list[str] | None = flag(None, "several")
    warmup_ratio: float | None = flag(None, "a share")


RECIPES = {
    "one": {"rate": 1, "kind": "b", "learning_rate": 1e-4, "warmup_steps": 50, "fp16": True},
    "two": {"rate": 2.0, "num_train_epochs": 3},
}


def parse(*argv):
    return parse_training(Settings, RECIPES, argv, "prog", "description", "")


@pytest.fixture
def file(tmp_path):
    """Write a configuration file and name it."""

    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return str(tmp_path / "run.yaml")

    return write


def test_default_then_preset_then_file_then_flag(file):
    path = file("preset: one\nkind: a\nlearning_rate: 2e-4\nmany: [x, y]")
    parsed = parse(path, "--learning-rate", "3e-4")
    assert parsed.arguments == Settings("one", 1.0, "a", ["x", "y"])
    assert parsed.rest == ["--warmup_steps", "50", "--fp16", "True", "--learning_rate", "3e-4"]
    assert parsed.sources == {
        **dict.fromkeys(["rate", "warmup_steps", "fp16"], "preset one"),
        **dict.fromkeys(["preset", "kind", "many"], f"file {path}"),
        "learning_rate": "flag",
    }
    assert parse(path, "--preset", "two").arguments.rate == 2.0
    assert parse(path, "--preset=default").arguments == Settings(None, None, "a", ["x", "y"])


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("--rate default", None),
        ("--rate=default", None),
        ("--rate 3 --rate default", None),
        ("--rate default --rate 3", 3.0),
    ],
)
def test_the_value_default_resets_a_flag_of_a_preset(words, rate):
    assert parse("--preset", "one", *words.split()).arguments.rate == rate


def test_null_and_default_in_a_file_reset_a_flag(file):
    parsed = parse(file("preset: one\nrate: default\nlearning_rate: null"))
    assert parsed.arguments.rate is None and "--learning_rate" not in parsed.rest


def test_default_is_an_ordinary_value_of_flags_that_no_preset_sets():
    assert parse("--many", "default").arguments.many == ["default"]
    assert parse("--run_name", "default").rest == ["--run_name", "default"]
    with pytest.raises(UserError, match="invalid choice"):
        parse("--log_level", "default")


def test_the_later_layer_wins_between_two_names_of_one_quantity(file):
    parsed = parse("--preset", "one", "--warmup_ratio", "0.1")
    assert parsed.arguments.warmup_ratio == 0.1 and "--warmup_steps" not in parsed.rest
    ratio = file("warmup_ratio: 0.1")
    assert parse(ratio, "--warmup_steps", "5").arguments.warmup_ratio is None
    assert parse(file("max_steps: 10"), "--num_train_epochs", "2").rest == ["--num_train_epochs", "2"]
    assert parse("--preset", "two", "--max_steps=10").rest == ["--max_steps=10"]
    assert parse("--preset", "two", "--max_steps", "-1").rest == ["--num_train_epochs", "3", "--max_steps", "-1"]
    # In one layer both stay, for transformers to choose.
    assert parse("--max_steps", "10", "--num_train_epochs", "2").rest == [
        *("--max_steps", "10", "--num_train_epochs", "2"),
    ]


@pytest.mark.parametrize(("word", "kept"), [("true", False), ("", False), ("false", True), ("=False", True)])
def test_one_precision_overrides_the_other_only_when_it_is_on(word, kept):
    flags = [f"--bf16{word}"] if word.startswith("=") else ["--bf16", *word.split()]
    assert ("--fp16" in parse("--preset", "one", *flags).rest) is kept


def test_words_without_a_flag_are_passed_on_to_transformers():
    assert parse("--rate", "1", "stray").rest == ["stray"]
    with pytest.raises(UserError, match="float"):
        parse("--preset", "one", "--rate", "fast")


def test_resolving_keeps_the_source():
    layers = [("preset p", {"a": 1, "b": 2}), ("flag", {"b": Default, "c": 3})]
    assert resolve(layers) == {"a": (1, "preset p"), "c": (3, "flag")}


def test_every_value_has_its_source():
    parsed = parse("--preset", "one", "--warmup_ratio", "0.1")
    theirs = {"learning_rate": 1e-4, "warmup_steps": 0.1, "report_to": [], "save_steps": 500}
    told = flag_sources(parsed, theirs, {"warmup_steps": 0.0, "report_to": "none", "save_steps": 500})
    assert (
        told["rate"] == (1.0, "preset one") and told["kind"] == ("b", "preset one") and told["seed"] == (42, "default")
    )
    assert told["warmup_steps"] == (0.1, "flag, as warmup_ratio") and told["save_steps"] == (500, "default")
    assert told["report_to"] == ([], "default") and told["learning_rate"] == (1e-4, "preset one")
