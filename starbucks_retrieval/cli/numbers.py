"""Numbers as people read them."""

from __future__ import annotations


def plain(value: float, digits: int = 6) -> str:
    """A number rounded to so many significant digits: 240 and not 2.4e+02, but 1e-05 where zeros would hide it."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text
