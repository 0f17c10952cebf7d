"""Dictionaries by size whose keys may be written as text, among them the embeddings that an encoder returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes, as_size

T = TypeVar("T")


class MissingSize(UserError, KeyError):
    """A size that a dictionary lacks; also a KeyError, as in any dictionary."""


class BySize(dict[Size, T]):
    """A dictionary by size whose keys may also be written as text.

    Args:
        items: {size: value}.
        model_sizes: The sizes that the model was trained at; with them a key may be a size alias.

    Raises:
        UserError: Looking up a size that is not there, or something else than a size; it is a KeyError too.

    Example:
        >>> found = BySize({Size(2, 32): "small", Size(6, 384): "full"})
        >>> found["2:32"], "6:384" in found, found.get("4:64", "none")
        ('small', True, 'none')
        >>> found["4:64"]
        Traceback (most recent call last):
        starbucks_retrieval.models.by_size.MissingSize: there is no size 4:64
          there is 2:32, 6:384
    """

    def __init__(self, items: Mapping[Size, T], model_sizes: Sizes | None = None) -> None:
        super().__init__(items)
        self._model_sizes = model_sizes

    def __missing__(self, key: Size | str) -> T:
        size = self._size(key)
        if size in self.keys():
            return self[size]
        raise MissingSize(f"there is no size {size}", f"there is {', '.join(map(str, self))}")

    def __contains__(self, key: object) -> bool:
        try:
            return super().__contains__(key) or super().__contains__(self._size(key))
        except UserError:
            return False

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a size, or `default` where it is not there.

        Args:
            key: A Size, text such as "2:32", or a size alias if the sizes of the model are known.
            default: Also returned for a key that is no size.
        """
        try:
            return self[key]
        except MissingSize:
            return default

    def _size(self, key: Any) -> Size:
        try:
            return as_size(key, self._model_sizes)
        except UserError as error:
            listed = ", ".join(f'"{size}"' for size in self)
            raise MissingSize(error.what, f"take one of {listed}") from None


class Embeddings(BySize[Any]):
    """The embeddings of texts: {size: array or tensor [texts, dim]}, or [dim] for one text.

    Example:
        >>> import numpy as np
        >>> vectors = Embeddings({Size(2, 32): np.zeros((3, 32), "f4"), Size(6, 384): np.zeros((3, 384), "f4")})
        >>> vectors["2:32"].shape
        (3, 32)
        >>> vectors
        Embeddings(3 texts at 2:32, 6:384; float32)
    """

    def __repr__(self) -> str:
        first = next(iter(self.values()), None)
        if first is None:
            return "Embeddings()"
        count = f"{len(first)} texts" if first.ndim == 2 else "1 text"
        kind = f"{first.dtype}" + (f" on {first.device}" if hasattr(first, "detach") else "")
        return f"Embeddings({count} at {', '.join(map(str, self))}; {kind})"
