"""How much to hold at once: queries per batch and passages per block under a memory limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starbucks_retrieval.errors import UserError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
FEW = 16  # queries
_SMALL = 2**24  # numbers of a block for fewer


def parse_bytes(text: str | int) -> int:
    """Read `4GB`, `512MiB`, `1.5g` or a plain number of bytes. Raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(text).upper())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise UserError(f"cannot read {text!r} as an amount of memory", "write a number with a unit, for example 4GB")
    return max(1, int(float(match[1]) * _UNITS[match[2]]))


@dataclass(frozen=True)
class Plan:
    """Sizes of the pieces of work. They decide speed and memory, never results.

    `candidates`: passages kept per query before exact scoring; `batch`: queries per pass over the store;
    `block`: passages per call of FAISS; `gathered`: candidates read back from the store at once;
    `close`: queries per extra pass when scores lie too close for single precision.
    """

    candidates: int
    batch: int
    block: int
    gathered: int
    close: int

    def block_for(self, queries: int, dim: int) -> int:
        """`block`, or less: for few queries, filling a large block for the first time takes longer than looking at it."""
        return self.block if queries >= FEW else min(self.block, max(4 * self.candidates, _SMALL // dim))


def make_plan(memory: int, batch_size: int, depth: int, count: int, dim: int) -> Plan:
    """Share `memory` bytes between a block of passages (half), the batch's lists and exact scoring (a quarter each).

    `batch_size` -1 stands for as many queries as fit. A limit too small to work with gets the smallest plan that works.
    """
    # FAISS errs by far less than the scores of neighbours differ, so a few more than `depth` nearly always suffice.
    candidates = min(depth + 32 + depth // 32, count)
    # Scores and rows, old and new, both sides of a merge, and FAISS's own lists.
    batch = max(1, memory // 4 // (candidates * 100))
    if batch_size > 0:
        batch = min(batch, batch_size)
    block = min(max(256, memory // 2 // (dim * 4)), count)
    return Plan(
        candidates=candidates,
        batch=batch,
        block=block,
        gathered=max(256, memory // 4 // (dim * 6)),
        close=max(1, memory // 4 // (block * 4)),
    )
