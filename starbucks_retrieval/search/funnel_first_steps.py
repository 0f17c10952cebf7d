"""First steps of a funnel that do not scan vectors: quantised codes of a store, and indexes that were built beside one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.search import check_parameters, parse_parameters
from starbucks_retrieval.search.engines import MAX_MEMORY
from starbucks_retrieval.search.engines.exact import import_faiss
from starbucks_retrieval.search.funnel import INDEX, FunnelStep
from starbucks_retrieval.search.funnel_search import Shortlister
from starbucks_retrieval.search.indexes import SavedIndex, open_index
from starbucks_retrieval.search.indexes.build import sample_rows
from starbucks_retrieval.search.indexes.manifest import MANIFEST, IndexManifest, is_index_manifest, read_manifest
from starbucks_retrieval.search.indexes.vectors import make_index
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, output_folder
from starbucks_retrieval.store.dtypes import QUANTISED
from starbucks_retrieval.store.layout import MANIFEST as STORE_MANIFEST
from starbucks_retrieval.store.spec import SCALES, job_difference
from starbucks_retrieval.store.storage import entries

_SAMPLE = 16384  # passages to learn from: FAISS uses 4096 for 16 centroids
_BLOCK = 16384  # passages that are encoded together


def code_shortlister(
    step: FunnelStep,
    store: EmbeddingStore,
    *,
    seed: int = 42,
    max_memory: int = MAX_MEMORY,
    threads: int | None = None,
) -> Shortlister:
    """Encode all vectors of a store and return a function that scans the codes.

    The codes are kept in memory, so they are made anew for every search of a process: a pass over the store. Those of
    int8 and binary are read instead where `starbucks store quantise` has stored them beside the store.

    Args:
        step: The first step of a funnel, with a code.
        store: The passages at its size.
        seed: Draws the passages that the quantiser learns from.
        max_memory: Bytes for vectors and lists; the codes themselves come on top.
        threads: CPU threads of FAISS; None: all.

    Raises:
        UserError: FAISS is not installed, the store is too small for a quantiser to learn from, or codes beside it are
            of another store.

    Example:
        >>> import tempfile, numpy as np
        >>> from starbucks_retrieval.search.funnel import Funnel
        >>> from starbucks_retrieval.search.stores import write_vectors
        >>> vectors = np.eye(4, dtype=np.float32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_vectors(f"{folder}/L1-D4", "abcd", vectors)
        ...     find = code_shortlister(Funnel.parse("1:4/int8@1,1:4").steps[0], store)
        ...     rows, scores = find(vectors[2:3], 1)
        ...     [row.tolist() for row in rows]
        [[2]]
    """
    factory = step.factory or "Flat"
    if threads is not None:
        import_faiss().omp_set_num_threads(threads)
    dim = store.spec.size.dim
    if (stored := _stored_codes(step, store)) is not None:
        return _scan(stored)
    index = make_index(factory, dim, seed, {})
    if store.count < index.smallest_sample:
        raise UserError(
            f"{step} learns from at least {index.smallest_sample} passages; the store has {store.count}",
            "omit the code: so few passages are scanned in no time",
        )
    rows = sample_rows(store.count, min(_SAMPLE, max(index.smallest_sample, max_memory // 2 // (dim * 4))), seed)
    index.train(store.vectors(rows).astype(np.float32))
    for _, block in store.blocks(max(256, min(_BLOCK, max_memory // 2 // (dim * 4))), np.float32):
        index.add(np.ascontiguousarray(block))

    def find(queries: np.ndarray, depth: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        rows, scores = index.search(np.ascontiguousarray(queries, np.float32), depth, index.search_parameters)
        return list(rows), list(scores)

    return find


def _stored_codes(step: FunnelStep, store: EmbeddingStore) -> EmbeddingStore | None:
    """Return the quantised store of the vectors of a store, or None if there is none beside it."""
    if store.spec.store_dtype == step.code:
        return store
    if step.code not in QUANTISED or len(store.folders) != 1:
        return None
    folder = output_folder(store.folders[0].parent / step.code, step.size)
    if STORE_MANIFEST not in entries(folder):
        return None
    stored = EmbeddingStore.open(folder)
    made = ("store_dtype", *SCALES, "shard_size", "parts", "part")
    if difference := job_difference(store.spec, stored.spec, ignore=made):
        raise UserError(
            f"{folder} does not hold codes of {store.folders[0]}: {difference}",
            f"run starbucks store quantise {store.folders[0]} --to {step.code} --overwrite",
        )
    return stored


def _scan(stored: EmbeddingStore) -> Shortlister:
    """Return a function that scans stored codes, held in memory."""
    faiss, quantiser, dim = import_faiss(), stored.spec.quantiser, stored.spec.size.dim
    assert quantiser is not None
    index: Any
    prepare: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray
    if quantiser.store_dtype == "binary":
        index, prepare = faiss.IndexBinaryFlat(-(-dim // 8) * 8), quantiser.encode
        for codes in stored.codes():
            index.add(np.ascontiguousarray(codes))
    else:
        # Not QT_8bit_direct_signed, whose scores are wrong from 64 dimensions on (FAISS 1.15.1 with AVX-512).
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        scale, offset = quantiser.scale, quantiser.offset
        # FAISS reads a byte b as the first number + (b + 0.5) / 255 of the second.
        levels = np.concatenate([offset - np.float32(128.5) * scale, 255 * scale]).astype(np.float32)
        faiss.copy_array_to_vector(levels, index.sq.trained)
        index.is_trained = True
        for codes in stored.codes():
            index.add_sa_codes(codes.view(np.uint8) ^ np.uint8(128))

    def find(queries: np.ndarray, depth: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        scores, rows = index.search(prepare(queries), depth)
        return list(rows), list(scores)

    return find


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
