"""Previews, durations and free space."""

from __future__ import annotations

import json

import pytest

from starbucks_retrieval.cli import CommonArguments
from starbucks_retrieval.cli.dry_run import Preview, duration, free_bytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not estimated"),
        (0.01, "about 1 s"),
        (119, "about 119 s"),
        (121, "about 2 minutes"),
        (3 * 3600, "about 3 hours"),
        (1e6, "about 12 days"),
    ],
)
def test_durations_in_words(seconds, text):
    assert duration(seconds).startswith(text)


def test_free_bytes_of_a_missing_folder_are_those_of_its_parent(tmp_path):
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.1)
    assert free_bytes("s3://bucket/folder") is None


def test_a_preview_is_printed_as_lines_or_as_json(capsys):
    preview = Preview([("a", "one"), ("long", "two")], {"x": 1})
    preview.show(CommonArguments())
    out, err = capsys.readouterr()
    assert out == "a     one\nlong  two\n" and "nothing was written" in err
    preview.show(CommonArguments(json=True, quiet=True))
    out, err = capsys.readouterr()
    assert json.loads(out) == {"dry_run": True, "x": 1} and not err
