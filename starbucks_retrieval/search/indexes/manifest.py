"""The folder of an index and its manifest: how it was built, and over which store.

<folder>/index.faiss     a FAISS index; for "Binary" a binary one
<folder>/manifest.json   written last: an index exists when this file does
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.leftovers import temporaries
from starbucks_retrieval.parsing import Count, Finite, Positive, check_value, read_json
from starbucks_retrieval.provenance import digest_matches, refuse_newer, with_digest
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.store.checksums import damaged_part, fits
from starbucks_retrieval.store.spec import agree

FORMAT = "starbucks_retrieval.index"
VERSION = 1
METRIC = "inner product"
MANIFEST = "manifest.json"
INDEX = "index.faiss"

# If one of these differs, the index is of another store; if another field differs, the store has changed.
_GEOMETRY = ("kind", "size", "fingerprint", "pooling", "normalize")
_SAMPLED_VECTORS = 64


@dataclass(frozen=True)
class IndexManifest:
    """How an index was built. Equal work gives an equal manifest: it has no time stamp.

    Args:
        factory: FAISS factory string, or "Binary".
        parameters: Parameters of building, such as efConstruction.
        seed: Seed of the training sample and of clustering.
        train_sample: Passages that were requested for training; None: chosen by the factory.
        trained_on: Passages that were used.
        store: `identity` of the store.
        model_name: The model that encoded it.
        faiss: Version of FAISS.
        bytes: Length of index.faiss.
        blake2b: Checksum of index.faiss.
        calibration: The thresholds of "Binary", one per dimension.
        blocks: Checksums of the blocks of index.faiss, from `block_checksums`; empty in older manifests.
    """

    factory: str
    parameters: dict[str, Finite]
    seed: int
    train_sample: Count | None
    trained_on: Count
    store: dict[str, Any]
    model_name: str
    faiss: str
    bytes: Count
    blake2b: str
    calibration: list[Finite] = field(default_factory=list)
    blocks: str = ""

    @property
    def count(self) -> int:
        """Passages in the index."""
        return self.store["count"]

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return self.store["dim"]

    @property
    def bytes_per_passage(self) -> float:
        """Bytes of the index alone, without the stored vectors that rescoring reads."""
        return self.bytes / self.count

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping; `read_manifest` reads it back."""
        return with_digest({"format": FORMAT, "version": VERSION, "metric": METRIC} | dataclasses.asdict(self))

    def same_request(self, other: IndexManifest) -> bool:
        """Return whether both were built with the same arguments over the same store."""
        names = ("factory", "parameters", "seed", "train_sample", "store")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def problem(self, folder: Path, checksum: bool = True) -> str | None:
        """Return what is wrong with index.faiss, or None.

        Args:
            folder: The folder of the index.
            checksum: Compare the content too, which this process reads once; otherwise only the length.
        """
        path = folder / INDEX
        if not path.is_file():
            return f"{path} is missing"
        if (length := path.stat().st_size) != self.bytes:
            return f"{path} has {length} bytes instead of {self.bytes}"
        if not checksum:
            return None
        if not self.blocks:
            return None if file_digest(path) == self.blake2b else f"{path} does not match its checksum"
        if not fits(self.blocks, length):
            return f"{folder / MANIFEST} does not have the checksums of {path}"
        if (damaged := damaged_part(path, self.blocks, self.blake2b)) is not None:
            return f"{path} does not match its checksum: bytes {damaged[0]} to {damaged[1]} are damaged"
        return None


def identity(store: EmbeddingStore) -> dict[str, Any]:
    """Return what identifies a store, whatever its shards and parts.

    `vectors` is a digest of 64 vectors spread over the store: a store that is encoded again from the same texts differs
    everywhere or nowhere, and reading all of a large one would take longer than a search.

    Args:
        store: The passages of an index.

    Returns:
        How the store was encoded (`kind`, `fingerprint`, `pooling`, `store_dtype` …), `size` such as `6:128`, `dim`,
        `first_row` in the corpus, `count` of passages, `largest_norm` and `vectors`.
    """
    spec = store.spec
    rows = np.unique(np.linspace(0, store.count - 1, min(store.count, _SAMPLED_VECTORS)).astype(np.int64))
    names = ("kind", "pooling", "normalize", "prefix", "separator", "max_length", "fingerprint", "compute_dtype")
    return {name: getattr(spec, name) for name in (*names, "store_dtype", "data_digest")} | {
        "size": str(spec.size),
        "dim": spec.size.dim,
        "first_row": store.first_row,
        "count": store.count,
        "largest_norm": store.largest_norm,
        "vectors": hashlib.blake2b(store.vectors(rows).tobytes(), digest_size=16).hexdigest(),
    }


def read_manifest(folder: Path) -> IndexManifest:
    """Read the manifest of an index.

    Args:
        folder: The folder of the index. Only manifest.json is read; `IndexManifest.problem` checks index.faiss.

    Raises:
        UserError: There is no index, it is unfinished, its manifest is damaged or of something else, or a newer
            version of this package wrote it.
    """
    path = folder / MANIFEST
    damaged = {"hint": "build the index again with --overwrite", "problem": "is damaged"}
    if not path.exists():
        if (folder / INDEX).exists() or temporaries(folder / INDEX):
            raise UserError(
                f"the index in {folder} is incomplete: building it was interrupted",
                "run the command that builds it again",
            )
        raise UserError(f"{folder} is not an index: it has no {MANIFEST}", "check the path, or build one")
    content = read_json(path, Any, **damaged)
    if not is_index_manifest(content):
        raise UserError(f"{path} is not the manifest of an index", "name the folder that --save_index wrote")
    refuse_newer(content.get("version"), VERSION, path, "build the index again")
    names = [entry.name for entry in dataclasses.fields(IndexManifest)]
    if not digest_matches(content, {"format", "version", "metric", *names}):
        raise UserError(
            f"{path} is damaged, or was changed after it was written: its digest does not match",
            "copy it again, or build the index again with --overwrite",
        )
    manifest = read_json(path, IndexManifest, **damaged)
    for name in ("count", "dim"):
        check_value(manifest.store.get(name), Positive, f"{path} is damaged: store.{name}", damaged["hint"])
    return manifest


def is_index_manifest(content: Any) -> bool:
    """Return whether the content of a manifest.json is that of an index.

    Example:
        >>> is_index_manifest({"format": "starbucks_retrieval.index", "version": 1}), is_index_manifest([])
        (True, False)
    """
    return isinstance(content, dict) and content.get("format") == FORMAT


def check_store(manifest: IndexManifest, store: EmbeddingStore, folder: Path) -> None:
    """Check that an index was built over a store.

    Args:
        manifest: The manifest of the index.
        store: The passages that are about to be searched.
        folder: The folder of the index, for the message.

    Raises:
        UserError: The index is of another model, size, kind, pooling or normalisation, or the store has changed since
            it was built. The message names the difference.
    """
    here = identity(store)
    for name in _GEOMETRY:
        if not agree(name, str(manifest.store.get(name)), str(here[name])):
            what, theirs, ours = name, manifest.store.get(name), here[name]
            if name == "fingerprint":  # model names are shown, not compared: one path can be written in several ways
                what, theirs = "model", f"{manifest.model_name or 'unnamed'} ({theirs})"
                ours = f"{store.spec.model_name or 'unnamed'} ({ours})"
            raise UserError(
                f"the index in {folder} is of another {what}: {theirs}, the store has {ours}",
                "name the index of this store, or build one with --save_index",
            )
    for name, value in here.items():
        if name not in _GEOMETRY and manifest.store.get(name) != value:
            raise UserError(
                f"the store has changed since the index in {folder} was built: "
                f"{name} was {manifest.store.get(name)!r}, is {value!r}",
                "build the index again with --overwrite, or name the store that it was built from",
            )
