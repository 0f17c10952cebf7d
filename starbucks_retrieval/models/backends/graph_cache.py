"""Converted and calibrated graphs in the cache with their figures, so that the next start makes and measures none again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_folder, cache_folder, file_digest, json_bytes, write_json
from starbucks_retrieval.models.backends.base import Figures, TokenRows
from starbucks_retrieval.models.backends.graph import PooledLayersGraph
from starbucks_retrieval.models.weight_files import hash_weights
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.provenance import describe, digest_matches, with_digest

log = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_KEPT = 8  # graphs that stay in the cache, those that were used last

Made = TypeVar("Made")
Opened = TypeVar("Opened")


@dataclasses.dataclass(frozen=True)
class GraphManifest:
    """The content of a kept graph's manifest.json.

    Attributes:
        made_for: What the graph depends on; it is used only where all of it is equal.
        checksums: {name: blake2b} of its files.
    """

    made_for: dict[str, Any]
    checksums: dict[str, str]


@dataclasses.dataclass(frozen=True)
class KeptFigures:
    """The content of a file of figures in a kept graph's folder.

    Attributes:
        measured_for: What they depend on; they count only where all of it is equal.
        figures: The figures.
        digest: As `with_digest` gives it.
    """

    measured_for: dict[str, Any]
    figures: Figures
    digest: str


class KeptGraph:
    """A converted graph in the cache, and figures that were measured on it.

    A graph is kept for one model, layers, calibration texts, processor and versions.

    Args:
        backend: The program that runs it.
        graph: What is converted. Its weights count as they are now.
        calibration: The token rows that it is quantised with; None if it is not quantised.
    """

    def __init__(self, backend: str, graph: PooledLayersGraph, calibration: TokenRows | None) -> None:
        self._made_for = _circumstances(backend, graph, calibration)
        self._folder = cache_folder() / "backends" / _name(self._made_for)
        self._checksums: dict[str, str] | None = None  # of the files that were opened, if they are kept

    def open(
        self, make: Callable[[], Made], save: Callable[[Made, Path], None], open_saved: Callable[[Path], Opened]
    ) -> Opened:
        """Open the graph from the cache, where it is made and kept if it is not there.

        Files that are damaged, of something else, or that `open_saved` refuses are made again. A graph that was just made
        is opened from its files too, so that its numbers are those of later starts. A cache that cannot be written is no
        error.

        Args:
            make: Converts the graph.
            save: Writes the result of `make` into a folder.
            open_saved: Opens what `save` wrote, and compares it with torch. Raises UserError or RuntimeError if it differs.

        Returns:
            What `open_saved` returns.
        """
        if self._folder.is_dir():
            try:
                checksums = _check(self._folder, self._made_for)
                with contextlib.suppress(OSError):  # a cache of someone else
                    os.utime(self._folder)
                opened, self._checksums = open_saved(self._folder), checksums
                return opened
            except (UserError, RuntimeError, OSError) as error:
                log.info("%s is made again: %s", self._folder, error)
        made = make()
        try:
            with atomic_folder(self._folder) as temporary:
                save(made, temporary)
                opened = open_saved(temporary)
                checksums = {path.name: file_digest(path) for path in temporary.iterdir()}
                write_json(temporary / _MANIFEST, dataclasses.asdict(GraphManifest(self._made_for, checksums)))
            self._checksums = checksums
            _remove_oldest(self._folder.parent)
            return opened
        except OSError as error:
            log.info("the converted model is not kept: %s", error)
        with tempfile.TemporaryDirectory() as name:
            save(made, Path(name))
            return open_saved(Path(name))

    def figures(self, name: str, circumstances: dict[str, Any], measure: Callable[[], Figures]) -> Figures:
        """Return figures of the open graph from beside it, where they are measured and kept if they are not there.

        Figures that are damaged, or of another graph or circumstances, are measured again; those of a graph that is not
        kept are always measured.

        Args:
            name: What they are, the beginning of the file's name.
            circumstances: What they depend on besides the graph, JSON-ready.
            measure: Measures them.
        """
        if self._checksums is None:
            return measure()
        measured_for = {"graph": self._made_for, "checksums": self._checksums, "circumstances": circumstances}
        path = self._folder / f"{name}-{_name(measured_for)}.json"
        if path.exists():
            try:
                found = read_json(path, KeptFigures)
                if found.measured_for == measured_for and digest_matches(dataclasses.asdict(found), frozenset()):
                    return found.figures
                log.info("%s is measured again: it is damaged, or of another model or machine", path)
            except (UserError, OSError) as error:
                log.info("%s is measured again: %s", path, error)
        figures = measure()
        try:
            write_json(path, with_digest({"measured_for": measured_for, "figures": figures}))
        except (UserError, OSError) as error:
            log.info("%s of the converted model is not kept: %s", name, error)
        return figures


def _name(circumstances: dict[str, Any]) -> str:
    return hashlib.blake2b(json_bytes(circumstances), digest_size=16).hexdigest()


def _circumstances(backend: str, graph: PooledLayersGraph, calibration: TokenRows | None) -> dict[str, Any]:
    encoder = graph.encoder
    rows = None if calibration is None else json_bytes([list(row) for row in calibration])
    weights = hashlib.blake2b(digest_size=16)  # as they are now: fingerprints are those of the first call
    hash_weights(weights, graph.state_dict())
    return {
        "backend": backend,
        "layers": {str(layer): encoder.fingerprint(layer) for layer in graph.layers},  # each has a map of its own
        "weights": weights.hexdigest(),
        "pooling": encoder.config.pooling,
        "attention": str(encoder.backbone.config._attn_implementation),
        "token_limit": encoder.token_limit,
        "calibration": rows and hashlib.blake2b(rows, digest_size=16).hexdigest(),
        "processor": {name: str(value) for name, value in torch.cpu.get_capabilities().items()},
        "made_by": describe(packages=("onnx", "onnxscript")),
    }


def _check(folder: Path, made_for: dict[str, Any]) -> dict[str, str]:
    """Return the checksums of a folder's files. Raises UserError or OSError unless they are undamaged and of this graph."""
    manifest = read_json(folder / _MANIFEST, GraphManifest)
    if manifest.made_for != made_for:
        raise UserError("it is of another model or machine", "delete it")
    for name, checksum in manifest.checksums.items():
        if file_digest(folder / Path(name).name) != checksum:
            raise UserError(f"{name} is damaged", "delete it")
    return manifest.checksums


def _remove_oldest(folder: Path) -> None:
    # Hidden folders are those of running writers.
    graphs = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for path in sorted(graphs, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(path, ignore_errors=True)
