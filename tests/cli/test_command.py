"""Exit codes, the summary, progress, numbers, and the imports that --help needs."""

from __future__ import annotations

import errno

import pytest

from starbucks_retrieval.cli import CommonArguments, finish, format_number, progress, run_command
from starbucks_retrieval.errors import UserError


def raises(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("what", "remedy"), 2, ("error: what", "try: remedy")),
        (KeyboardInterrupt(), 130, ("interrupted",)),
        (OSError(errno.ENOSPC, "full", "out/x.npy"), 2, ("no space left", "out/x.npy", "same command again")),
        (PermissionError(errno.EACCES, "no", "/root/x"), 2, ("/root/x", "permissions")),
        (FileExistsError(errno.EEXIST, "File exists", "runs"), 2, ("runs: File exists", "check the path")),
    ],
)
def test_exit_codes(error, status, words, capsys):
    assert run_command(raises(error), []) == status
    printed = capsys.readouterr().err
    assert all(word in printed for word in words)


def test_other_exceptions_are_raised():
    with pytest.raises(ZeroDivisionError):
        run_command(raises(ZeroDivisionError()), [])


def test_standard_output_holds_only_the_json(capsys):
    finish(CommonArguments(json=True), "summary", {"a": 1})
    printed = capsys.readouterr()
    assert printed.out == '{"a": 1}\n' and printed.err == "summary\n"
    finish(CommonArguments(quiet=True), "summary", {})
    assert capsys.readouterr() == ("", "")


def test_progress_yields_everything():
    assert list(progress(range(5), 5, "item", "label")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (240.3, 2, "240"),
        (2.43, 2, "2.4"),
        (99.6, 2, "100"),
        (0.00123, 2, "0.0012"),
        (12345.678, 4, "12346"),
        (1e-05, 4, "1e-05"),
        (6980000, 6, "6980000"),
        (-1234567.0, 6, "-1234567"),
        (0, 4, "0"),
        (float("inf"), 4, "inf"),
        (float("nan"), 4, "nan"),
    ],
)
def test_a_large_number_has_no_exponent(value, digits, text):
    assert format_number(value, digits) == text
