"""Configuration files in YAML or JSON."""

from __future__ import annotations

import json
import types
import typing
from typing import Any, Literal

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_text, shown
from starbucks_retrieval.yaml_text import parse_yaml


def load_config(path: str) -> dict[str, Any]:
    """Read a .yaml or .json mapping of flag names to values.

    Sizes such as 2:32 and dates are read as text, where YAML 1.1 would read a number to base 60 and a date.

    Args:
        path: The file. Its ending must be .yaml, .yml or .json.

    Returns:
        The values by flag name, with the types of the file: they are not converted to the flags' types.

    Raises:
        UserError: The file is missing, is not YAML or JSON, or holds no mapping.
    """
    if not path.endswith((".yaml", ".yml", ".json")):
        raise UserError(
            f"unexpected argument {path!r}", "flags start with --, a configuration file ends in .yaml or .json"
        )
    loaded = parse_yaml(read_text(path), path)
    if not isinstance(loaded, dict):
        raise UserError(f"{path} does not hold a mapping", "write one 'flag: value' per line")
    if str(loaded.get("format", "")).startswith("starbucks-"):
        raise UserError(
            f"{path} is a file that a command wrote, not a configuration",
            "put the flag that takes it before it, such as --input",
        )
    return loaded


def convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a value of a configuration file to the type of its flag.

    Args:
        name: The file and the flag, for messages.
        value: A scalar, a list or None; None stays None.
        hint: The flag's type, from `flag_types`. For a list type, a single value becomes a list of one.

    Raises:
        UserError: The value is of another type; `name` says where.

    Example:
        >>> convert("a.yaml: depth", "10", int), convert("a.yaml: run", "bm25.trec", list[str] | None)
        (10, ['bm25.trec'])
    """
    scalar, is_list = scalar_type(hint)
    remedy = "correct the configuration file"
    if isinstance(value, list) and not is_list:
        raise UserError(f"{name} takes one value, not a list", remedy)
    converted: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            converted.append(None)
        elif typing.get_origin(scalar) is Literal:
            if item not in typing.get_args(scalar):
                choices = ", ".join(map(str, typing.get_args(scalar)))
                raise UserError(f"{name}: {shown(item)} is not one of {choices}", remedy)
            converted.append(item)
        elif scalar is str and isinstance(item, dict):
            converted.append(json.dumps(item, ensure_ascii=False))  # for flags that take mappings, written as JSON
        elif scalar is bool and not isinstance(item, bool):
            raise UserError(f"{name}: {shown(item)} is neither true nor false", remedy)
        else:
            try:
                converted.append(_scalar(item, scalar))
            except (TypeError, ValueError, OverflowError):
                raise UserError(f"{name}: {shown(item)} is not of type {scalar.__name__}", remedy) from None
    return converted if is_list else converted[0]


def scalar_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of one value behind a field's annotation, and whether the flag takes several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0], True
    return hint, False


def _scalar(item: Any, scalar: Any) -> Any:
    """Return a value as a str, int, float or bool. Raises ValueError or another error of conversion for other values."""
    if isinstance(item, (list, dict)) or (isinstance(item, bool) and scalar in (int, float)):
        raise TypeError
    value = scalar(item)
    if isinstance(item, float) and scalar is int and value != item:
        raise ValueError
    if isinstance(value, str):
        value.encode()  # fails for half a surrogate pair
        if "\0" in value:
            raise ValueError
    return value
