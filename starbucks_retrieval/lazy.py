"""Public names of packages whose modules are imported on first use, because `--help` must not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package that imports its public names on first use.

    The package also imports the names under `TYPE_CHECKING` and lists them in `__all__`, where type checkers and editors
    read them.

    Args:
        package: The package's `__name__`.
        modules: Public name → the module that defines it, relative to the package.

    Returns:
        The two functions that Python calls for names that the package does not define (PEP 562) and for `dir`, which
        lists `__all__` alone: notebooks complete what it returns.

    Example:
        >>> load, _ = lazy_exports("json", {"JSONDecoder": ".decoder"})
        >>> load("JSONDecoder").__module__
        'json.decoder'
        >>> load("JSONEditor")
        Traceback (most recent call last):
        AttributeError: module 'json' has no attribute 'JSONEditor'
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    return load, public_names(package)


def public_names(package: str) -> Callable[[], list[str]]:
    """Return the function `__dir__` of a package: it lists the names in `__all__`.

    Args:
        package: The package's `__name__`.
    """
    return lambda: sorted(sys.modules[package].__all__)
