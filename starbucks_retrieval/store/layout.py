"""Names of folders and files of a store.

<output>/L6-D128/manifest.json             the job, its shards, and whether all of them are there
<output>/L6-D128/00000.vectors.npy         [rows, dim] float16 or float32
<output>/L6-D128/00000.ids.npy             [rows] bytes, UTF-8
<output>/L6-D128/00000.json                rows and checksums; written last: a shard exists when this file does
<output>/part-00000-of-00004/L6-D128/…     the same for one of several jobs that share a corpus
"""

from __future__ import annotations

import re
from pathlib import Path

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.storage import PathLike, as_path

MANIFEST = "manifest.json"
_OWN = re.compile(r"\.lock|\.?(manifest\.json|\d{5,}\.(vectors\.npy|ids\.npy|json))((\.[0-9a-f]+)?\.tmp)?")
_SIZE = re.compile(r"L(\d+)-D(\d+)")
_PART = re.compile(r"part-(\d{5,})-of-(\d{5,})")


def size_folder(size: Size) -> str:
    """`L6-D128` for 6:128; a colon is no part of a portable file name."""
    return f"L{size.layer}-D{size.dim}"


def folder_size(name: str) -> Size | None:
    """The size that a folder's name tells, or None."""
    match = _SIZE.fullmatch(name)
    return Size(int(match[1]), int(match[2])) if match else None


def output_folder(output: PathLike, size: Size, parts: int = 1, part: int = 0) -> Path:
    """Where the store of one size (and one part of several) lives under an output folder; for a URL, a UPath."""
    root = as_path(output)
    if parts > 1:
        root = root / f"part-{part:05d}-of-{parts:05d}"
    return root / size_folder(size)


def is_part(name: str) -> bool:
    """Whether a folder's name is that of one part of several."""
    return _PART.fullmatch(name) is not None


def shard_file(shard: int, what: str) -> str:
    """`what`: `vectors.npy`, `ids.npy` or `json`."""
    return f"{shard:05d}.{what}"


def is_own(name: str) -> bool:
    """Whether a store writes files of that name."""
    return _OWN.fullmatch(name) is not None
