"""The ids of a corpus: which row each has, and its place in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starbucks_retrieval.data import Passage, Records, Scan
from starbucks_retrieval.errors import UserError

# Beyond this ids are kept as single objects: one long id must not widen all the others.
_WIDEST = 128


class Docids:
    """Read from a corpus in one pass. Memory: the ids at the width of the longest, and 16 bytes each.

    order: int64, the rows of the corpus by ascending id, compared by their UTF-8 bytes. ranks: int64, the place of each
    row in that order.
    """

    def __init__(self, corpus: Records[Passage], found: Scan) -> None:
        dtype = f"S{found.longest_id}" if found.longest_id <= _WIDEST else object
        try:
            ids = np.fromiter((passage.docid.encode() for passage in corpus), dtype, found.count)
        except ValueError:
            raise UserError(f"{corpus.name} has become shorter while it was read", "run the command again") from None
        self.order = np.argsort(ids, kind="stable")
        self.ranks = np.empty(len(ids), np.int64)
        self.ranks[self.order] = np.arange(len(ids))
        self._sorted = ids[self.order]

    def __len__(self) -> int:
        return len(self.ranks)

    def rows(self, docids: Sequence[str]) -> np.ndarray:
        """The row of each id, -1 for one that the corpus lacks: int64 [len(docids)]."""
        kind = object if self._sorted.dtype == object else np.bytes_
        wanted = np.array([docid.encode() for docid in docids], kind)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self) - 1)
        return np.where(self._sorted[at] == wanted, self.order[at], -1)
