"""Checksums of the blocks of a file: a part of it is checked without reading the rest.

A block has 64 KiB, the last one of a file fewer. Its checksum is XXH3 of 64 bits, which takes about as long as reading
the block from memory; the blake2b checksum of a whole file takes ten times as long and is left to `store verify`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

import numpy as np
import xxhash

BLOCK = 2**16  # bytes; part of the format
_DIGITS = 16  # of a checksum

# File version → blocks that this process has found undamaged. Checked once, whoever opens the file again.
_checked: dict[tuple[int, int, int, int, str], np.ndarray] = {}


def block_checksums(pieces: Iterable[bytes | memoryview]) -> str:
    """Return the checksums of all blocks of a file, 16 hex digits each, in order.

    Args:
        pieces: The bytes of the file, in order.

    Example:
        >>> block_checksums([b"ab", b"c"]) == block_checksums([b"abc"])
        True
        >>> len(block_checksums([bytes(BLOCK + 1)]))
        32
    """
    found: list[str] = []
    block, filled = xxhash.xxh3_64(), 0
    for piece in pieces:
        content, start = memoryview(piece), 0
        while start < len(content):
            part = content[start : start + BLOCK - filled]
            block.update(part)
            start, filled = start + len(part), filled + len(part)
            if filled == BLOCK:
                found.append(block.hexdigest())
                block, filled = xxhash.xxh3_64(), 0
    if filled:
        found.append(block.hexdigest())
    return "".join(found)


def blocks_of(length: int) -> int:
    """Return the number of blocks of a file of `length` bytes."""
    return -(-length // BLOCK)


def fits(checksums: str, length: int) -> bool:
    """Return whether a text can be the checksums of the blocks of a file; the file is not read.

    Args:
        checksums: The text; it should have 16 hex digits for each block.
        length: The length of the file in bytes.
    """
    return len(checksums) == _DIGITS * blocks_of(length) and set(checksums) <= set("0123456789abcdef")


def checked_blocks(version: os.stat_result, length: int, name: str) -> np.ndarray:
    """Return which blocks of a file this process has found undamaged: [blocks] bool, to be updated in place.

    Args:
        version: The status of the open file. Another inode, length or time of change is another file.
        length: The length of the file in bytes.
        name: The checksum of the whole file, so that another store's record of the same file is not trusted.
    """
    key = (version.st_dev, version.st_ino, version.st_size, version.st_mtime_ns, name)
    return _checked.setdefault(key, np.zeros(blocks_of(length), bool))


def damaged_block(content: memoryview, checksums: np.ndarray, blocks: np.ndarray) -> int | None:
    """Return the first of some blocks that does not match its checksum, or None.

    Args:
        content: The bytes of the file.
        checksums: The checksums of all blocks, from `parsed`.
        blocks: The numbers of the blocks to check.
    """
    for block, expected in zip(blocks.tolist(), checksums[blocks].tolist()):
        if xxhash.xxh3_64_intdigest(content[block * BLOCK : (block + 1) * BLOCK]) != expected:
            return block
    return None


def damaged_part(path: str | os.PathLike[str], checksums: str, name: str) -> tuple[int, int] | None:
    """Return the range of bytes of the first damaged block of a file, or None.

    Blocks that this process has found undamaged before are not read.

    Args:
        path: The file.
        checksums: The text of `block_checksums`, which `fits` the file.
        name: As for `checked_blocks`.
    """
    with open(path, "rb") as handle:
        version = os.fstat(handle.fileno())
        checked = checked_blocks(version, version.st_size, name)
        unknown = np.flatnonzero(~checked)
        if not len(unknown):
            return None
        content = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    damaged = damaged_block(content, parsed(checksums), unknown)
    if damaged is not None:
        return damaged * BLOCK, min((damaged + 1) * BLOCK, len(content))
    checked[:] = True
    return None


def parsed(checksums: str) -> np.ndarray:
    """Return the text of `block_checksums` as numbers: [blocks] uint64."""
    return np.frombuffer(bytes.fromhex(checksums), ">u8").astype(np.uint64)


def blocks_of_range(start: int, stop: int) -> np.ndarray:
    """Return the numbers of the blocks that hold the bytes [start, stop).

    Example:
        >>> blocks_of_range(100, 70000)
        array([0, 1])
    """
    return np.arange(start // BLOCK, -(-stop // BLOCK) if stop > start else start // BLOCK)


def blocks_of_rows(rows: np.ndarray, offset: int, width: int, blocks: int) -> np.ndarray:
    """Return the numbers of the blocks that hold some rows of an array, ascending, each once.

    Args:
        rows: Row numbers, any integers [n].
        offset: The byte of the file at which row 0 starts.
        width: Bytes of a row.
        blocks: Blocks of the file.

    Example:
        >>> blocks_of_rows(np.array([0, 1000]), offset=128, width=512, blocks=10)
        array([0, 7])
    """
    wanted = np.zeros(blocks, bool)
    first = (offset + rows * width) // BLOCK
    last = (offset + (rows + 1) * width - 1) // BLOCK
    for step in range(width // BLOCK + 1):  # a row may be longer than a block
        wanted[np.minimum(first + step, last)] = True
    wanted[last] = True
    return np.flatnonzero(wanted)
