"""Candidates on disk, beside the output, so that other filters need no second search.

`rows.npy`, `scores.npy` and `positive_scores.npy` as in Candidates, and `manifest.json`, written last and removed
first: what the lists were made from, and a checksum of every array.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, file_digest, write_json
from starbucks_retrieval.mine.candidates import Candidates
from starbucks_retrieval.provenance import describe

log = logging.getLogger(__name__)
FORMAT = 1
_MANIFEST = "manifest.json"
_ARRAYS = tuple(field.name for field in dataclasses.fields(Candidates))


def folder_of(output: Path) -> Path:
    """Where the candidates behind an output lie. Raises UserError if something else has that name."""
    folder = output.with_name(f"{output.name}.candidates")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "move it, or name another --output_path")
    return folder


def save(folder: Path, candidates: Candidates, identity: dict[str, Any], configuration: dict[str, Any]) -> None:
    """Write the candidates; a kill at any moment leaves a folder that `load` refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)
    for name in _ARRAYS:
        with atomic_writer(folder / f"{name}.npy") as out:
            np.save(out, getattr(candidates, name), allow_pickle=False)
    digests = {name: file_digest(folder / f"{name}.npy") for name in _ARRAYS}
    content = {"format": FORMAT, "identity": identity, "arrays": digests, "provenance": describe(configuration)}
    write_json(folder / _MANIFEST, content)


def load(folder: Path, identity: dict[str, Any]) -> Candidates | None:
    """The candidates of an equal search, memory-mapped, or None where there are none or they are damaged."""
    try:
        content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        stored, digests = dict(content["identity"]), dict(content["arrays"])
        same_format = content["format"] == FORMAT
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        log.warning("%s is damaged: searching again", folder / _MANIFEST)
        return None
    other = sorted(key for key in stored.keys() | identity.keys() if stored.get(key) != identity.get(key))
    if other or not same_format:
        log.info("the candidates in %s are of another search (%s): searching again", folder, ", ".join(other))
        return None
    for name in _ARRAYS:
        path = folder / f"{name}.npy"
        if not path.is_file() or file_digest(path) != digests.get(name):
            log.warning("%s is damaged or missing: searching again", path)
            return None
    log.info("the candidates in %s are used again; delete the folder to search anew", folder)
    return Candidates(*(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS))
