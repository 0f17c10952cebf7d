"""JSON lines: one object per line, plain or gzip."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.formats import Layouts, NumberedRows, decode, raw_lines
from starbucks_retrieval.errors import UserError


def rows(path: Path, start: int = 0, stop: int | None = None, layouts: Layouts | None = None) -> NumberedRows:
    """Yield (line number, object) of each line. Raises UserError for malformed JSON and for anything but an object."""
    for number, raw in islice(raw_lines(path), start, stop):
        text = decode(raw, path, number)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: malformed JSON: {error}", "write one JSON object per line") from None
        if type(row) is not dict:
            raise UserError(
                f"{path}:{number}: not a JSON object", "write one object per line; for an array: jq -c '.[]' file.json"
            )
        if b"\\u" in raw and (b"\\ud" in raw or b"\\uD" in raw):
            _refuse_lone_surrogates(row, path, number)
        yield number, row


def _refuse_lone_surrogates(row: dict[str, Any], path: Path, number: int) -> None:
    # JSON can spell half of a surrogate pair; no later stage could write such a string as UTF-8.
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(
            f"{path}:{number}: half of a surrogate pair (\\ud800 to \\udfff) in a string",
            "write the character itself, or both halves",
        ) from None
