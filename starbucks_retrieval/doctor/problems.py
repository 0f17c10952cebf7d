"""What is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One finding: `what` is wrong, its `remedy`, and whether something will fail (`serious`) or only be worse."""

    what: str
    remedy: str
    serious: bool = True
