"""Flips of single bits in files, drawn by a seed, and what reading the damaged files comes to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.store import checksums


@contextmanager
def flipped(path: Path, byte: int, bit: int) -> Iterator[None]:
    """Flip one bit of a file meanwhile."""
    _flip(path, byte, bit)
    try:
        yield
    finally:
        _flip(path, byte, bit)


def _flip(path: Path, byte: int, bit: int) -> None:
    with open(path, "r+b") as handle:
        handle.seek(byte)
        value = handle.read(1)[0]
        handle.seek(byte)
        handle.write(bytes([value ^ 1 << bit]))
    checksums._checked.clear()  # as in a process that has read nothing yet


def outcomes(files: Sequence[Path], flips: int, seed: int, read: Callable[[], Any]) -> Counter[str]:
    """Flip bits one at a time, a random one of a random file, and read after each.

    Args:
        files: The files, each drawn equally often.
        flips: How many bits.
        seed: Draws files and bits.
        read: Reads the files, and returns something that can be compared. A UserError means that it noticed.

    Returns:
        How many flips were `noticed`, and how many were `harmless`: the same was read.

    Raises:
        AssertionError: Something else was read, or another error raised; the message names the bit.
    """
    rng, whole, found = random.Random(seed), read(), Counter[str]()
    for _ in range(flips):
        path = rng.choice(files)
        byte, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        with flipped(path, byte, bit):
            try:
                same = read() == whole
            except UserError:
                found["noticed"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"bit {bit} of byte {byte} of {path.name}: {error!r}") from error
            assert same, f"bit {bit} of byte {byte} of {path.name} changed the result unnoticed"
            found["harmless"] += 1
    return found
