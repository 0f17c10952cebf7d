"""Indexes as first steps of a funnel: those that were built beside a store, and the parameters to search them with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.search import check_parameters, parse_parameters
from starbucks_retrieval.search.funnel import INDEX, FunnelStep
from starbucks_retrieval.search.funnel_search import Shortlister
from starbucks_retrieval.search.indexes import SavedIndex, open_index
from starbucks_retrieval.search.indexes.manifest import MANIFEST, IndexManifest, is_index_manifest, read_manifest
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

_PROBES = tuple(2**power for power in range(9))  # lists of an IVF that are read: values of nprobe
# Nodes of a graph that are kept: values of efSearch. FAISS takes the list's length at least.
_WIDTHS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class IndexStep(FunnelStep):
    """A first step that asks an open index, with given parameters of its search.

    Args:
        code: Always `INDEX`.
        index: The index, over the store of `size`.
        parameters: As --index_search takes them, such as `nprobe=16`; empty for an index that takes none.
    """

    code: str | None = INDEX
    index: SavedIndex | None = None
    parameters: str = ""

    @property
    def folder(self) -> str:
        """The folder of the index."""
        return str(self.index.folder) if self.index is not None else ""

    def shortlister(self, **limits: Any) -> Shortlister:
        """Return a function that asks the index, as a search through `--funnel` and `--load_index` does.

        Args:
            limits: `max_memory` and `threads` of `SavedIndex.search`.
        """
        assert self.index is not None
        return partial(self.index.search, parameters=parse_parameters(self.parameters), rescore=0, **limits)


def find_indexes(passage_reps: str) -> dict[Path, IndexManifest]:
    """Return the finished indexes beside a store: in the folder of its sizes, and in the folder around that.

    Args:
        passage_reps: A folder; beside a pattern of parts, or a store elsewhere, nothing is looked for.

    Returns:
        {folder: manifest}, in the order of their names. An index that cannot be read is left out, with a warning.
    """
    root = Path(passage_reps)
    if not root.is_dir():
        return {}
    found: dict[Path, IndexManifest] = {}
    for folder in sorted(
        {path.parent for base in (root, root.resolve().parent) for path in base.glob(f"*/{MANIFEST}")}
    ):
        try:
            if is_index_manifest(read_json(folder / MANIFEST, Any)):
                found[folder] = read_manifest(folder)
        except (OSError, UserError) as error:
            log.warning("the index in %s is left out: %s", folder, error)
    return found


def index_flags(folder: str | None, parameters: str | None) -> str:
    """Return the flags that ask an index, as they are typed after a funnel; empty without an index.

    Example:
        >>> index_flags("ivf", "nprobe=16")
        ' --load_index ivf --index_search nprobe=16'
    """
    if not folder:
        return ""
    return f" --load_index {folder}{f' --index_search {parameters}' if parameters else ''}"


def indexed_sizes(manifests: Mapping[Path, IndexManifest], stored: Sequence[Size]) -> Iterator[Size]:
    """Yield the sizes of indexes that are stored, or can be cut from a stored size.

    Args:
        manifests: What `find_indexes` returned.
        stored: The sizes of the passages.
    """
    for manifest in manifests.values():
        size = Size.parse(str(manifest.store["size"]))
        if any(size.layer == one.layer and size.dim <= one.dim for one in stored):
            yield size


def index_steps(
    manifests: Mapping[Path, IndexManifest],
    stores: Mapping[Size, EmbeddingStore],
    parameters: str | None = None,
    *,
    named: bool = False,
    checksum: bool = True,
) -> list[IndexStep]:
    """Open indexes and return what a funnel may ask first: each of them with several parameters.

    Args:
        manifests: Of the indexes, by folder.
        stores: The passages by size.
        parameters: Those to search with, as --index_search takes them; None: some values of nprobe or efSearch.
        named: Whether the user named the index, so that one that does not fit is refused; others are left out.
        checksum: Compare each index with its checksum, which reads all of it.

    Raises:
        UserError: A named index does not fit to the stores, or does not take the parameters.
    """
    steps: list[IndexStep] = []
    for folder, manifest in manifests.items():
        size = Size.parse(str(manifest.store["size"]))
        try:
            if size not in stores:
                raise UserError(
                    f"the index in {folder} is of {size}, which is not stored", "name an index of a stored size"
                )
            index = open_index(folder, stores[size], checksum=checksum)
            tried = [parameters] if parameters is not None else _parameters(index)
            for one in tried:
                check_parameters(parse_parameters(one), index.parameters, manifest.factory, "search")
        except UserError as error:
            if named:
                raise
            log.info("the index in %s is left out: %s", folder, error)
            continue
        log.info("choosing a funnel: the index in %s, %s at %s, may make its lists", folder, manifest.factory, size)
        index.quiet = True  # short lists are expected while parameters are tried
        steps += [IndexStep(size, index=index, parameters=one) for one in tried]
    return steps


def _parameters(index: SavedIndex) -> list[str]:
    """Return values to try for the parameter that trades speed for recall; one empty text if there is none."""
    if "nprobe" in index.parameters:
        lists = re.search(r"IVF(\d+)", index.manifest.factory)
        most = int(lists[1]) if lists is not None else _PROBES[-1]
        return [f"nprobe={value}" for value in _PROBES if value <= most]
    if "efSearch" in index.parameters:
        return [f"efSearch={value}" for value in _WIDTHS]
    return [""]
