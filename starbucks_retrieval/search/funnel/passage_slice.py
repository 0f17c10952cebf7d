"""One stored array for all dims of its layer: a store seen through its first numbers, and stores opened by size."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, open_store
from starbucks_retrieval.store.layout import parse_size_folder
from starbucks_retrieval.store.locate import store_folders
from starbucks_retrieval.store.transform import truncate

_ROWS = 1024  # fewer rows of the wide store at once would spend their time opening files


class Slice(EmbeddingStore):
    """The first `dim` numbers of every vector of `store`, divided by their length if the store is normalised.

    Reads as a stored slice of that size would, bit for bit: numbers are rounded to the stored type again. Nothing is
    copied; ids come from the store itself. Raises UserError for a dim that the store does not hold.
    """

    def __init__(self, store: EmbeddingStore, dim: int) -> None:
        stored = store.spec.size
        if not 1 <= dim <= stored.dim:
            raise UserError(
                f"{dim} dimensions cannot be cut from {stored}", f"take a dim from 1 to {stored.dim}, or encode wider"
            )
        vars(self).update(vars(store))  # ids and rows are the same
        self.spec = dataclasses.replace(store.spec, size=Size(stored.layer, dim))
        self._held = None
        self._wide = store
        if store.spec.normalize:
            # Length 1, but for what rounding adds: relatively, and absolutely for the smallest numbers.
            kind = np.finfo(self.dtype)
            self.largest_norm = 1 + 1e-5 + float(kind.eps) + math.sqrt(dim) * float(kind.smallest_subnormal)

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """As EmbeddingStore.blocks; what is read of the wide store at once takes about the memory of a block."""
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}")
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        if self._held is not None and wanted == np.float32:
            yield from super().blocks(max_rows, wanted)
            return
        dim, width = self.spec.size.dim, self._wide.spec.size.dim
        buffer = np.empty((min(max_rows, self.count), dim), wanted)
        given = filled = 0
        for _, wide in self._wide.blocks(min(max_rows, max(_ROWS, max_rows * dim // width))):
            narrow = self._cut(wide)
            while len(narrow):
                some = narrow[: len(buffer) - filled]
                buffer[filled : filled + len(some)] = some
                filled, narrow = filled + len(some), narrow[len(some) :]
                if filled == len(buffer):
                    yield given, buffer
                    given, filled = given + filled, 0
        if filled:
            yield given, buffer[:filled]

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """As EmbeddingStore.consecutive."""
        ids, wide = self._wide.consecutive(start, stop)
        return ids, self._cut(wide)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """As EmbeddingStore.vectors."""
        dim = self.spec.size.dim
        gathered = np.empty((len(rows), dim), self.dtype)
        at_once = max(_ROWS, len(rows) * dim // self._wide.spec.size.dim)
        for start in range(0, len(rows), at_once):
            gathered[start : start + at_once] = self._cut(self._wide.vectors(rows[start : start + at_once]))
        return gathered

    def _cut(self, wide: np.ndarray) -> np.ndarray:
        return truncate(wide, self.spec.size.dim, self.spec.normalize).astype(self.dtype, copy=False)


def open_sizes(reps: str | os.PathLike[str] | EmbeddingStore, sizes: Iterable[Size]) -> dict[Size, EmbeddingStore]:
    """A store for every size: the one that encode wrote, or else a Slice of the narrowest wider one of its layer.

    `reps` is what `open_store` takes, or one open store. Raises UserError that lists the sizes there are.
    """
    there = stored_sizes(reps)
    opened: dict[Size, EmbeddingStore] = {}

    def stored(size: Size) -> EmbeddingStore:
        if size not in opened:
            opened[size] = reps if isinstance(reps, EmbeddingStore) else open_store(reps, size)
        return opened[size]

    found: dict[Size, EmbeddingStore] = {}
    for size in sizes:
        wider = [one for one in there if one.layer == size.layer and one.dim > size.dim]
        if size in there:
            found[size] = stored(size)
        elif wider:
            found[size] = Slice(stored(min(wider)), size.dim)
        else:
            where = "the store" if isinstance(reps, EmbeddingStore) else str(reps)
            raise UserError(
                f"{where} has no size {size}, nor a wider one of its layer", f"it has {', '.join(map(str, there))}"
            )
    return found


def stored_sizes(reps: str | os.PathLike[str] | EmbeddingStore) -> list[Size]:
    """The sizes that are stored under what `open_store` takes, ascending."""
    if isinstance(reps, EmbeddingStore):
        return [reps.spec.size]
    folders = store_folders([reps])
    return sorted({parse_size_folder(folder.name) or EmbeddingStore.open(folder).spec.size for folder in folders})
