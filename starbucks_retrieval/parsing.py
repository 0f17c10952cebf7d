"""The readers of JSON and other small text files that people and other programs write; `yaml_text` reads YAML.

Every reader has the same limits: 64 MB of text, 200 levels of nesting, 4,300 digits of an integer. The content is checked against a type by pydantic, without conversions: a text does not stand for a number, nor a boolean for an integer.
"""

from __future__ import annotations

import re
import reprlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Ge, Interval, Predicate

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

#: An integer that a file states as a count or a position. The limit is far beyond any memory.
Count = Annotated[int, Interval(ge=0, le=2**48)]
#: A number of things of which there is at least one.
Positive = Annotated[int, Interval(ge=1, le=2**48)]
#: A finite number, for example a score.
Finite = Annotated[float, Interval(ge=-1.7e308, le=1.7e308)]
#: A finite number that is not negative, for example a length.
Length = Annotated[Finite, Ge(0)]

#: A plain name of a file or folder: nothing is read outside the folder that it is looked for in.
FileName = Annotated[str, Predicate(lambda name: is_file_name(name))]

MAX_BYTES = 64 << 20  # of a file that is read whole
MAX_LINE = 64 << 20  # bytes of a line of a file that is read line by line
_SHOWN = 60  # characters of a value in a message
_SHORT = reprlib.Repr()  # of lists and mappings
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxother = 3, 20, 20, _SHOWN, 2 * _SHOWN
_PLACE = re.compile(r"(?:Invalid JSON: )?(.*) at line (\d+) column \d+")


def is_file_name(name: str) -> bool:
    """Return whether a text is a plain name of a file or folder, which no system refuses.

    Example:
        >>> is_file_name("model.safetensors"), is_file_name("../model.safetensors"), is_file_name("")
        (True, False, False)
    """
    return re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,200}", name) is not None and name not in (".", "..")


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """Read a small UTF-8 file.

    Args:
        path: The file; it is read into memory as a whole.
        limit: The most bytes that it may have.

    Returns:
        Its text.

    Raises:
        UserError: The file is missing, is a folder, is not UTF-8 or is larger than the limit.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file is needed", "check the path") from None
    if len(content) > limit:
        raise UserError(f"{path} has more than {limit >> 20} MB, which no such file needs", "name another file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start})", "convert it: iconv -f latin1 -t utf-8") from None


def read_json(path: str | Path, kind: Any = dict[str, Any], hint: str = "restore the file", **options: Any) -> Any:
    """Read a JSON file and check its content against a type.

    Args:
        path: The file.
        kind: As for `parse_json`.
        hint: The remedy if the file is malformed or has other content.
        options: Further arguments of `parse_json`.

    Returns:
        The content, of type `kind`.

    Raises:
        UserError: The file cannot be read, or `parse_json` refuses its content.
    """
    return parse_json(read_text(path), kind, path, hint, **options)


def parse_json(
    text: str | bytes, kind: Any, name: str | Path, hint: str = "restore the file", problem: str = "", extra: Any = None
) -> Any:
    """Read JSON and check its content against a type.

    Args:
        text: The JSON.
        kind: A type that pydantic understands: a dataclass, `dict[str, Any]`, `list[int]` … Values must have this type
            exactly, but an integer may stand for a float, and an array for a tuple.
        name: The file, for messages.
        hint: The remedy if the text is malformed or has other content.
        problem: Put after the name in messages, such as `is damaged`.
        extra: `forbid` refuses keys that a dataclass lacks; by default they are ignored.

    Returns:
        The content, of type `kind`.

    Raises:
        UserError: The text is not JSON, is nested too deeply, or has other content; the message has the key.

    Example:
        >>> parse_json('{"a": 1}', dict[str, int], "a.json")
        {'a': 1}
        >>> parse_json('{"a": "x"}', dict[str, int], "a.json")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: a.json: a is 'x', expected a valid integer
          restore the file
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text, strict=True, extra=extra)
    except ValidationError as error:
        raise UserError(f"{name}{problem and f' {problem}'}: {_explain(error)}", hint) from None
    except UserError as error:  # of a class that checks its own values
        raise UserError(f"{name}{problem and f' {problem}'}: {error.what}", error.hint) from None


def parse_value(text: bytes) -> Any:
    """Return the value of a piece of JSON, such as a line of a file. Raises ValueError for anything else.

    Objects become dicts, arrays lists. A value may be nested 200 deep and an integer have 4,300 digits.

    Example:
        >>> parse_value(b'{"docid": 1}')
        {'docid': 1}
    """
    return _parser()(text)


def check_value(value: Any, kind: Any, name: str, hint: str = "restore the file") -> Any:
    """Check a value that was read as plain lists and dicts against a type.

    Args:
        value: The value.
        kind: A type made of lists, dicts, texts, numbers and booleans.
        name: Its name, for messages.
        hint: The remedy if it has another type.

    Returns:
        The value.

    Raises:
        UserError: It has another type.

    Example:
        >>> check_value(["a"], list[str], "a.json: names")
        ['a']
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise UserError(f"{name}: {_explain(error)}", hint) from None


def shown(value: Any) -> str:
    """Return a value as a message shows it: 60 characters at most.

    Example:
        >>> shown("x" * 100)
        "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    if isinstance(value, int) and abs(value) > 10**_SHOWN:
        return "a number of more than 60 digits"
    text = repr(value[: 2 * _SHOWN]) if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@cache
def _adapter(kind: Any) -> TypeAdapter:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@cache
def _parser() -> Any:
    from functools import partial

    from pydantic_core import from_json

    return partial(from_json, cache_strings="keys")


def _explain(error: ValidationError) -> str:
    """Return the first problem with its key, as `shards[3].rows is 'x', expected a valid integer`."""
    first = error.errors(include_url=False, include_context=False)[0]
    what, value = first["type"], first["input"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)[1:-1]}" for part in first["loc"]).lstrip(
        "."
    )
    if what == "json_invalid":
        found = _PLACE.fullmatch(first["msg"])
        return f"malformed JSON at line {found[2]} ({found[1]})" if found else f"malformed JSON ({first['msg']})"
    if what in ("missing", "missing_argument"):
        return f"{key} is missing"
    if what == "unexpected_keyword_argument":
        return f"unknown key {key}"
    if what == "value_error":
        reason = first["msg"].removeprefix("Value error, ")
        return f"{key}: {reason}" if key else reason
    expected = first["msg"].removeprefix("Input should be ")
    return f"{key or 'its content'} is {shown(value)}, expected {expected}"
