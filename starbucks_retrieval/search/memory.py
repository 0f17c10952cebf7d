"""Memory limits: reading them, and sharing one between blocks of passages and lists of candidates."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starbucks_retrieval.errors import UserError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
MAX_MEMORY = 2 * 10**9  # bytes
FEW = 16  # queries
_SMALL_BLOCK = 2**24  # numbers of a block for fewer queries


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes of an amount of memory. Raises UserError for text that is none.

    Example:
        >>> parse_bytes("4GB"), parse_bytes("512MiB"), parse_bytes(1000)
        (4000000000, 536870912, 1000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(text).upper())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise UserError(f"cannot read {text!r} as an amount of memory", "write a number with a unit, for example 4GB")
    return max(1, int(float(match[1]) * _UNITS[match[2]]))


@dataclass(frozen=True)
class MemoryPlan:
    """How much a search reads and keeps at once. It decides speed and memory, never results.

    Args:
        candidates: Passages kept per query before exact scoring.
        batch: Queries per pass over the store.
        block: Passages per matrix product.
        gathered: Candidates that are read back from the store at once.
        rescanned: Queries per additional pass, for those whose results single precision leaves open.
    """

    candidates: int
    batch: int
    block: int
    gathered: int
    rescanned: int

    def block_for(self, queries: int, dim: int) -> int:
        """Return `block`, or less for few queries: touching a large buffer would take longer than the products."""
        return self.block if queries >= FEW else min(self.block, max(4 * self.candidates, _SMALL_BLOCK // dim))


def plan_memory(memory: int, batch_size: int, depth: int, count: int, dim: int) -> MemoryPlan:
    """Share a memory limit: half for a block of passages, a quarter each for candidate lists and exact scoring.

    Args:
        memory: Bytes. Where they are too few, the smallest plan that works is returned.
        batch_size: Queries per pass at most; -1: as many as fit.
        depth: Candidates needed per query.
        count: Passages of the store.
        dim: Dimensions of a vector.
    """
    # Rounding errors are far below the differences between scores: a few more than `depth` nearly always suffice.
    candidates = min(depth + 32 + depth // 32, count)
    # Bytes per candidate: scores and rows, before and after a merge, and FAISS's own lists.
    batch = max(1, memory // 4 // (candidates * 100))
    if batch_size > 0:
        batch = min(batch, batch_size)
    block = min(max(256, memory // 2 // (dim * 4)), count)
    return MemoryPlan(
        candidates=candidates,
        batch=batch,
        block=block,
        gathered=max(256, memory // 4 // (dim * 6)),
        rescanned=max(1, memory // 4 // (block * 4)),
    )
