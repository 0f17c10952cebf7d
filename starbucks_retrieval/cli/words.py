"""The words of a command line."""

from __future__ import annotations

from collections.abc import Sequence


def flag_chunks(words: Sequence[str]) -> list[list[str]]:
    """Split a command line before every flag.

    Example:
        >>> flag_chunks(["a.yaml", "--run", "x", "y", "--json"])
        [['a.yaml'], ['--run', 'x', 'y'], ['--json']]
    """
    chunks: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not chunks:
            chunks.append([])
        chunks[-1].append(word)
    return chunks
