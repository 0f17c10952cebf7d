"""Configuration files in YAML or JSON, and other small text files that users write."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from typing import Any, Literal

from starbucks_retrieval.errors import UserError


def load_config(path: str) -> dict[str, Any]:
    """Read a .yaml or .json mapping of flag names to values.

    Sizes such as 2:32 are read as text, where YAML 1.1 would read a number to base 60.

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
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader without numbers to base 60."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, re.compile(f"(?!.*:)(?:{form.pattern})", re.X) if tag.endswith(("int", "float")) else form)
                for tag, form in forms]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }  # fmt: skip
    try:
        loaded = yaml.load(read_text(path), Loader)  # noqa: S506 - a subclass of SafeLoader; JSON is YAML
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}", "correct the file's syntax") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} does not hold a mapping", "write one 'flag: value' per line")
    return loaded


def convert(name: str, value: Any, scalar: Any, is_list: bool) -> Any:
    """Convert a value of a configuration file to `scalar` (a type or a Literal), or to a list of them.

    Args:
        name: The file and the flag, for messages.
        value: A scalar, a list or None; None stays None.
        scalar: The type of one value.
        is_list: Whether the flag takes several values; a single value then becomes a list of one.

    Raises:
        UserError: The value is of another type; `name` says where.

    Example:
        >>> convert("a.yaml: depth", "10", int, False), convert("a.yaml: run", "bm25.trec", str, True)
        (10, ['bm25.trec'])
    """
    hint = "correct the configuration file"
    if isinstance(value, list) and not is_list:
        raise UserError(f"{name} takes one value, not a list", hint)
    converted: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            converted.append(None)
        elif typing.get_origin(scalar) is Literal:
            if item not in typing.get_args(scalar):
                choices = ", ".join(map(str, typing.get_args(scalar)))
                raise UserError(f"{name}: {item!r} is not one of {choices}", hint)
            converted.append(item)
        elif scalar is str and isinstance(item, dict):
            converted.append(json.dumps(item, ensure_ascii=False))  # for flags that take mappings, written as JSON
        elif scalar is bool and not isinstance(item, bool):
            raise UserError(f"{name}: {item!r} is neither true nor false", hint)
        else:
            try:
                converted.append(scalar(item))
            except (TypeError, ValueError):
                raise UserError(f"{name}: {item!r} is not of type {scalar.__name__}", hint) from None
    return converted if is_list else converted[0]


def read_text(path: str | Path) -> str:
    """Read a small UTF-8 file.

    Args:
        path: The file; it is read into memory as a whole.

    Returns:
        Its text.

    Raises:
        UserError: The file is missing, is a folder or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file is needed", "check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start})", "convert it: iconv -f latin1 -t utf-8") from None
