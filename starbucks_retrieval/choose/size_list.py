"""A ladder for the next training: the nested sizes that are worth most over all budgets."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.choose.candidates import Candidate
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, Sizes


def propose_sizes(some: Sequence[Candidate], count: int) -> Sizes:
    """The best chain of `count` sizes in which neither layer nor dim ever falls, ending at the full size.

    Best is the largest area under quality against effort (the logarithm of cost): with a budget drawn evenly from that
    axis one takes the largest rung that fits, and has its quality; below the smallest rung one has nothing. Found by
    dynamic programming over all candidates. Raises UserError when the full size is not among them, or no chain of them
    is that long.
    """
    full = Size(max(one.size.layer for one in some), max(one.size.dim for one in some))
    ordered = sorted(some, key=lambda one: one.size)
    if full not in [one.size for one in ordered]:
        raise UserError(f"the full size {full} is not measured, and a ladder ends there", "measure it with grid")
    if count < 1:
        raise UserError(f"--auto_sizes {count} is below 1", "ask for one rung or more")
    # best[i]: area and rungs of the best chain so far that ends at ordered[i].
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, (i,)) for i in range(len(ordered))]
    for length in range(2, count + 1):
        longer: list[tuple[float, tuple[int, ...]] | None] = [None] * len(ordered)
        for i, upper in enumerate(ordered):
            options = []
            for j, lower in enumerate(ordered):
                so_far = best[j]
                if so_far is not None and _below(lower.size, upper.size):
                    options.append((so_far[0] + lower.quality * (upper.effort - lower.effort), (*so_far[1], i)))
            # Of equal areas the one of smaller sizes, so that the answer does not depend on the order of the file.
            longer[i] = min(options, key=lambda option: (-option[0], option[1])) if options else None
        if longer[-1] is None:
            raise UserError(
                f"no {length} of the measured sizes are nested, up to {full}", f"ask for --auto_sizes {length - 1}"
            )
        best = longer
    last = best[-1]
    assert last is not None  # the full size is the greatest, and it was reached
    return Sizes(ordered[i].size for i in last[1])


def _below(lower: Size, upper: Size) -> bool:
    return lower != upper and lower.layer <= upper.layer and lower.dim <= upper.dim
