"""The stores that a search reads at several sizes, as stored or cut from wider ones."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, MemoryStore, StoreSpec, open_store
from starbucks_retrieval.store.locate import parse_size_folder, store_folders
from starbucks_retrieval.store.operations import truncate
from starbucks_retrieval.store.spec import agree

_ROWS = 1024  # reading fewer rows of the wide store at once would spend the time on opening files
# The fields in which two stores must agree for a row to mean one text, encoded alike.
_SHARED = (
    *("kind", "data_digest", "data_count", "parts", "part"),
    *("model_name", "pooling", "normalize", "prefix", "separator"),
)

Stores = dict[Size, EmbeddingStore]
PassageReps = str | os.PathLike[str] | EmbeddingStore | Mapping[Size, EmbeddingStore]


class SlicedStore(EmbeddingStore):
    """A view of the first `dim` numbers of every vector of a store, brought to length 1 if the store is normalised.

    Reads the same bits as a stored slice of that size: numbers are rounded to the stored type again. Nothing is copied;
    ids come from the store.

    Args:
        store: The wider store; of a quantised one, the decoded numbers are cut.
        dim: From 1 to the dim of the store.

    Raises:
        UserError: The store does not hold the dim.
    """

    def __init__(self, store: EmbeddingStore, dim: int) -> None:
        stored = store.spec.size
        if not 1 <= dim <= stored.dim:
            raise UserError(
                f"{dim} dimensions cannot be cut from {stored}", f"use a dim from 1 to {stored.dim}, or encode wider"
            )
        vars(self).update(vars(store))  # ids and rows are the same
        levels: dict[str, Any] = {"scale": (), "offset": (), "store_dtype": store.dtype.name}  # of what is read
        self.spec = dataclasses.replace(store.spec, size=Size(stored.layer, dim), **levels)
        self._held = None
        self._wide = store
        if store.spec.normalize:
            # Length 1 plus what rounding adds: relatively, and absolutely for the smallest numbers.
            kind = np.finfo(self.dtype)
            self.largest_norm = 1 + 1e-5 + float(kind.eps) + math.sqrt(dim) * float(kind.smallest_subnormal)

    @property
    def block_dtype(self) -> np.dtype:
        """As EmbeddingStore.block_dtype; the type of the cut vectors where they are held."""
        return self.dtype if self._held is None else self._held.dtype

    def id_bytes(self, rows: np.ndarray) -> list[bytes]:
        """As EmbeddingStore.id_bytes."""
        return self._wide.id_bytes(rows)

    def blocks(self, max_rows: int, dtype: npt.DTypeLike | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """As EmbeddingStore.blocks; reads of the wide store take about the memory of a block."""
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}")
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        if self._held is not None and wanted == self._held.dtype:
            yield from super().blocks(max_rows, wanted)
            return
        dim, width = self.spec.size.dim, self._wide.spec.size.dim
        buffer = np.empty((min(max_rows, self.count), dim), wanted)
        yielded = filled = 0
        for _, wide in self._wide.blocks(min(max_rows, max(_ROWS, max_rows * dim // width))):
            narrow = self._cut(wide)
            while len(narrow):
                fitting = narrow[: len(buffer) - filled]
                buffer[filled : filled + len(fitting)] = fitting
                filled, narrow = filled + len(fitting), narrow[len(fitting) :]
                if filled == len(buffer):
                    yield yielded, buffer
                    yielded, filled = yielded + filled, 0
        if filled:
            yield yielded, buffer[:filled]

    def consecutive(self, start: int, stop: int) -> tuple[list[str], np.ndarray]:
        """As EmbeddingStore.consecutive."""
        ids, wide = self._wide.consecutive(start, stop)
        return ids, self._cut(wide)

    def ranges(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """As EmbeddingStore.ranges."""
        return self._wide.ranges(max_rows)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """As EmbeddingStore.rows; a copy unless they are held in the stored type."""
        if self._held is not None and self._held.dtype == self.dtype:
            return self._held[start:stop]
        return np.ascontiguousarray(self._cut(self._wide.rows(start, stop)))

    def block(self, start: int, stop: int) -> np.ndarray:
        """As EmbeddingStore.block."""
        return self.rows(start, stop) if self._held is None else self._held[start:stop]

    def hold(self, max_bytes: int, dtype: npt.DTypeLike = np.float32) -> None:
        """As EmbeddingStore.hold; vectors of any type are copied, which saves cutting them again."""
        self._load(max_bytes, np.dtype(dtype))

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


def open_sizes(reps: PassageReps, sizes: Iterable[Size]) -> Stores:
    """Open a store for every size: the stored one, or a view of the narrowest wider store of its layer.

    Args:
        reps: What `open_store` takes, one open store, or several by size.
        sizes: The sizes that are needed.

    Raises:
        UserError: Neither a size nor a wider one of its layer is stored; the message lists the sizes that are.
    """
    stored = stored_sizes(reps)
    in_memory = {reps.spec.size: reps} if isinstance(reps, EmbeddingStore) else reps
    opened: Stores = dict(in_memory) if isinstance(in_memory, Mapping) else {}

    def open_stored(size: Size) -> EmbeddingStore:
        if size not in opened:
            opened[size] = open_store(cast(str, reps), size)
        return opened[size]

    found: Stores = {}
    for size in sizes:
        wider = [one for one in stored if one.layer == size.layer and one.dim > size.dim]
        if size in stored:
            found[size] = open_stored(size)
        elif wider:
            found[size] = SlicedStore(open_stored(min(wider)), size.dim)
        else:
            raise UserError(
                f"{shown(reps)} has no size {size}, nor a wider one of its layer",
                f"it has {', '.join(map(str, stored))}",
            )
    return found


def skip_checksums(*stores: Stores) -> None:
    """Read some stores from now on without comparing what is read with its checksums.

    Args:
        stores: Stores by size; views skip the checksums of the stores that they read.
    """
    for store in (one for by_size in stores for one in by_size.values()):
        store.skip_checksums()


def shown(reps: PassageReps) -> str:
    """Return the path of stored passages, or "the store" for an open one, for messages."""
    return str(reps) if isinstance(reps, str | os.PathLike) else "the store"


def stored_sizes(reps: PassageReps) -> list[Size]:
    """Return the sizes that are stored under what `open_store` takes, ascending.

    Args:
        reps: A path or pattern, one open store, or several by size.

    Raises:
        UserError: There is no store at the path.
    """
    if isinstance(reps, EmbeddingStore):
        return [reps.spec.size]
    if isinstance(reps, Mapping):
        return sorted(reps)
    folders = store_folders([reps])
    return sorted({parse_size_folder(folder.name) or EmbeddingStore.open(folder).spec.size for folder in folders})


def check_together(stores: Mapping[Size, EmbeddingStore], sizes: Iterable[Size]) -> None:
    """Raise UserError unless there is a store for every size, and all hold the same texts in the same order.

    Fingerprints differ from layer to layer, so stores of different layers are compared by the name of their model.

    Args:
        stores: Stores of queries or of passages, by size.
        sizes: The sizes that are needed; other stores are not compared.
    """
    sizes = list(sizes)
    for size in sizes:
        if size not in stores:
            raise UserError(f"there is no store of size {size}", f"there is {', '.join(map(str, stores)) or 'none'}")
    for one, other in pairwise(sorted(sizes)):  # sizes of one layer are neighbours
        first, second = stores[one].spec, stores[other].spec
        for name in _SHARED + (("fingerprint",) if first.size.layer == second.size.layer else ()):
            left, right = getattr(first, name), getattr(second, name)
            if name == "model_name":  # the path of one folder can be written in several ways
                left, right = Path(left).name, Path(right).name
            if not agree(name, left, right):
                raise UserError(
                    f"the stores of {one} and {other} do not belong together: {name} is {left!r} and {right!r}",
                    "encode all sizes of a funnel in one run: --sizes 2:32,12:768",
                )


def write_vectors(
    folder: str | Path, ids: Sequence[str], vectors: np.ndarray, store_dtype: str = "float32", layer: int = 1
) -> EmbeddingStore:
    """Write passages whose vectors were not made by `encode` as a finished store of one shard, and open it.

    Args:
        folder: A new folder.
        ids: Document ids.
        vectors: [len(ids), dim].
        store_dtype: `float16` or `float32`.
        layer: The layer of the size that the store is given; its dim is that of the vectors.
    """
    count, dim = vectors.shape
    made = MemoryStore(array_spec(count, Size(layer, dim)), list(ids), vectors)
    return made.save(Path(folder), store_dtype=store_dtype)


def array_spec(count: int, size: Size) -> StoreSpec:
    """Return the specification of passages whose vectors were not made by `encode`, in one shard.

    Args:
        count: Passages, at least 1.
        size: The size that they are given.
    """
    values: dict[str, Any] = {"pooling": "cls", "normalize": False, "prefix": "", "separator": " ", "max_length": 1}
    values |= {"fingerprint": "", "compute_dtype": "fp32", "store_dtype": "float32", "data_digest": ""}
    return StoreSpec(kind="passages", size=size, **values, data_count=count, shard_size=count)
