"""JSON lines: one object per line, plain or gzip."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from starbucks_retrieval.data.formats import Layouts, NumberedRows, decode, raw_lines
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import parse_value


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (line number, object) of each line.

    Args:
        path: The file.
        start: The position of the first row to yield, from 0.
        stop: The position after the last one; None for the end of the file.
        layouts: Ignored: the objects name the columns.

    Raises:
        UserError: While iterating: malformed JSON, or anything but an object.
    """
    for number, raw in islice(raw_lines(path), start, stop):
        try:
            row = parse_value(raw)
        except ValueError as error:
            decode(raw, path, number)  # raises a clearer error where this is the cause
            raise _malformed(str(error), path, number) from None
        if type(row) is not dict:
            raise UserError(
                f"{path}:{number}: not a JSON object", "write one object per line; for an array: jq -c '.[]' file.json"
            )
        yield number, row


def _malformed(reason: str, path: Path, number: int) -> UserError:
    if "surrogate" in reason or "hex escape" in reason:  # no later stage could write such a string as UTF-8
        what = f"{path}:{number}: malformed JSON: half of a surrogate pair (\\ud800 to \\udfff) in a string"
        return UserError(what, "write the character itself, or both halves")
    return UserError(f"{path}:{number}: malformed JSON: {reason}", "write one JSON object per line")
