"""Registries: names that users type, mapped to code that is imported on first use."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from starbucks_retrieval.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """The entry of a registered name.

    Attributes:
        target: The object, or `package.module:attribute`, which is imported on first use.
        help: One line for `--help` and the documentation.
    """

    target: Any
    help: str


class Registry(Generic[T]):
    """A table of names from which flag choices, help texts, model cards and documentation are generated.

    A package outside adds a name in one of two ways: by calling `register`, or, without being imported first, by an
    entry point in the group `starbucks_retrieval.<kind>` whose value is `package.module:attribute`.

    Args:
        kind: What the names stand for, in the plural; names the entry point group: `losses`, `backends`.
        noun: What one is called in messages: `loss`, `encoding back end`.
        built_in: The names of this package, each with its target and one line of help.

    Example:
        >>> distances = Registry("distances", "distance", {"hypotenuse": ("math:hypot", "Euclidean distance")})
        >>> distances["hypotenuse"](3, 4)
        5.0
        >>> distances.register("sum", lambda x, y: x + y, help="city-block distance")
        >>> list(distances)
        ['hypotenuse', 'sum']
        >>> distances["summ"]
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: unknown distance 'summ'
          use sum; known: hypotenuse, sum
    """

    def __init__(self, kind: str, noun: str, built_in: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self.noun = noun
        self._entries = {name: Entry(target, help) for name, (target, help) in built_in.items()}
        self._searched = False

    def register(self, name: str, target: T | str, *, help: str = "") -> None:
        """Add a name.

        Args:
            name: What users type.
            target: The object, or `package.module:attribute` to import it on first use.
            help: One line for `--help` and the documentation.

        Raises:
            ValueError: The name is taken by another target.
        """
        self._find_entry_points()
        if name in self._entries and self._entries[name].target != target:
            raise ValueError(f"the {self.noun} {name!r} is registered already: {self._entries[name].target}")
        self._entries[name] = Entry(target, help)

    def __getitem__(self, name: str) -> T:
        """Return the object behind a name, importing it on first use.

        Raises:
            UserError: The name is unknown, or its target cannot be imported.
        """
        self._find_entry_points()
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, 1)
            hint = f"use {near[0]}; " if near else ""
            raise UserError(f"unknown {self.noun} {name!r}", f"{hint}known: {', '.join(self._entries)}")
        target = self._entries[name].target
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            try:
                target = getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                raise UserError(
                    f"the {self.noun} {name!r} cannot be loaded from {module}:{attribute}: {error}",
                    "install or update the package that adds it",
                ) from error
        return target

    def __contains__(self, name: object) -> bool:
        self._find_entry_points()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """The names, those of this package first, without importing what they stand for."""
        self._find_entry_points()
        return iter(list(self._entries))

    def help(self, name: str) -> str:
        """Return the line of help of a registered name."""
        self._find_entry_points()
        return self._entries[name].help

    def help_text(self) -> str:
        """Return `name: help` of every name, separated by semicolons, for the help of a flag."""
        return "; ".join(f"{name}: {self.help(name)}" if self.help(name) else name for name in self)

    def _find_entry_points(self) -> None:
        if self._searched:
            return
        self._searched = True
        for point in entry_points(group=f"starbucks_retrieval.{self.kind}"):
            owner = f" (from {point.dist.name})" if point.dist is not None else ""
            self._entries.setdefault(point.name, Entry(point.value, f"added by a plug-in{owner}"))
