"""Checks of texts that are given in Python: lists, arrays, columns of tables, generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starbucks_retrieval.errors import UserError

_FLAT = "give one flat list of strings"


def checked_texts(texts: Any, what: str = "encode") -> list[str]:
    """Return texts as a list.

    Args:
        texts: A list, an array, a column of a data set or another iterable of texts.
        what: What takes the texts, for messages.

    Raises:
        UserError: It is something else, or an item is not a text.

    Example:
        >>> checked_texts(["a hen", None])
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: text 1 (from 0) is None, not a string
          leave it out, or replace it by an empty string
    """
    return list(iterate_texts(texts, what))


def iterate_texts(texts: Any, what: str = "encode") -> Iterator[str]:
    """Yield texts as `checked_texts` does, each once it is needed; `texts` itself is checked at once.

    Args:
        texts: A list, an array, a column of a data set or another iterable of texts.
        what: What takes the texts, for messages.

    Raises:
        UserError: `texts` is something else; later, when it is reached, an item that is not a text.
    """
    dimensions: int = getattr(texts, "ndim", 1)
    table = hasattr(texts, "columns") or dimensions > 1
    if isinstance(texts, str | bytes | Mapping) or table or not isinstance(texts, Iterable):
        raise UserError(f"{what} takes texts, not {_describe(texts)}", _remedy(texts))
    if dimensions == 0:
        raise UserError(f"{what} takes texts, not an array without dimensions", f"{_FLAT}: [array.item()]")
    return (_check_text(position, text) for position, text in enumerate(texts))


def _check_text(position: int, text: Any) -> str:
    """Return a text unchanged. Raises UserError if it is not a string."""
    if isinstance(text, str):
        return text
    shown = repr(text) if text is None or isinstance(text, int | float) else f"of type {type(text).__name__}"
    what = f"text {position} (from 0) is {shown}, not a string"
    if isinstance(text, list | tuple) or hasattr(text, "ndim"):
        raise UserError(what, f"{_FLAT}; join the parts of a text: ' '.join(parts)")
    if isinstance(text, int | float) and text == text:  # NaN, which tables have for missing texts, equals nothing
        raise UserError(what, "turn numbers into strings: [str(text) for text in texts]")
    if isinstance(text, bytes):
        raise UserError(what, "decode it: text.decode()")
    raise UserError(what, "leave it out, or replace it by an empty string")


def _describe(texts: Any) -> str:
    if texts is None:
        return "nothing"
    return "one text" if isinstance(texts, str) else f"something of type {type(texts).__name__}"


def _remedy(texts: Any) -> str:
    if hasattr(texts, "columns"):
        return "name the column of the texts: table['text']"
    if isinstance(texts, Mapping):
        return "give a list of its texts: list(texts.values())"
    if isinstance(texts, str):
        return f"give a list of strings: [{texts[:20]!r}]"
    return _FLAT if hasattr(texts, "ndim") else "give one string or a list of strings"


def refuse_surrogates(texts: Sequence[str]) -> None:
    """Raise UserError for the first text that UTF-8 cannot hold: `json` reads half a surrogate pair without an error."""
    for position, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"text {position} (from 0) is not valid Unicode: {text[:40]!r}",
                "replace what is invalid: text.encode('utf-8', 'replace').decode()",
            ) from None
