"""Name the folders of stores, and open stores by a path: the folder of a size, its parent, a pattern, or parts."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, as_size
from starbucks_retrieval.store.layout import MANIFEST
from starbucks_retrieval.store.reader import EmbeddingStore
from starbucks_retrieval.store.storage import PathLike, as_path, entries, exists, is_folder, matching

_SIZE = re.compile(r"L(\d+)-D(\d+)")
_PART = re.compile(r"part-(\d{5,})-of-(\d{5,})")


def size_folder(size: Size) -> str:
    """Return the folder name of a size; a colon is not portable in file names.

    Example:
        >>> size_folder(Size(6, 128))
        'L6-D128'
    """
    return f"L{size.layer}-D{size.dim}"


def parse_size_folder(name: str) -> Size | None:
    """Return the size that a folder is named after, or None if it is not named after a size.

    Args:
        name: The name of the folder, without the path.

    Example:
        >>> str(parse_size_folder("L6-D128")), parse_size_folder("runs")
        ('6:128', None)
    """
    match = _SIZE.fullmatch(name)
    return Size(int(match[1]), int(match[2])) if match else None


def output_folder(output: PathLike, size: Size, parts: int = 1, part: int = 0) -> Path:
    """Return the folder of one size, and of one part of several, under an output folder.

    Args:
        output: A local folder or a URL; for a URL the result is a UPath.
        size: The size of the store.
        parts: The number of jobs that share the corpus.
        part: The job, counted from 0.

    Example:
        >>> str(output_folder("emb", Size(6, 128), parts=4, part=2))
        'emb/part-00002-of-00004/L6-D128'
    """
    root = as_path(output)
    if parts > 1:
        root = root / f"part-{part:05d}-of-{parts:05d}"
    return root / size_folder(size)


def is_part_folder(name: str) -> bool:
    """Return whether a folder is named as one part of several.

    Example:
        >>> is_part_folder("part-00002-of-00004"), is_part_folder("part-2")
        (True, False)
    """
    return _PART.fullmatch(name) is not None


def open_store(path: PathLike, size: Size | str | None = None) -> EmbeddingStore:
    """Open a store, joining its parts.

    Args:
        path: The folder of a size, the output of encode with one or several sizes and parts, or a pattern that matches
            such folders; local or a URL.
        size: The size to open, where there are several: a Size or a string such as "6:128".

    Raises:
        UserError: No store is there; there are several sizes and `size` is missing; `size` is not among them.

    Example:
        >>> store = open_store("emb/passages", "6:128")  # doctest: +SKIP
        >>> for start, vectors in store.blocks(max_rows=4096):  # doctest: +SKIP
        ...     print(start, vectors.shape)
    """
    folder = as_path(path)
    if _is_pattern(folder):
        return open_stores(path, size)
    size = None if size is None else as_size(size)
    return _join(_folders(folder, size), size)


def open_stores(pattern: PathLike, size: Size | str | None = None) -> EmbeddingStore:
    """Open all folders that match a pattern as one store, joining its parts.

    Args:
        pattern: A glob pattern such as `emb/part-*`, local or a URL. It matches folders of sizes, or outputs of encode.
        size: The size to open, where the folders hold several; None if there is only one.

    Raises:
        UserError: No folder matches, or one is not a complete store; there are several sizes and `size` is missing;
            `size` is not among them; or several folders are not all the parts of one job.
    """
    matches = _matches(as_path(pattern))
    size = None if size is None else as_size(size)
    if all(parse_size_folder(match.name) and MANIFEST in entries(match) for match in matches):
        # `emb/*` matches the sizes of one output: choose among them as if `emb` had been named.
        matches = _of_one_size(matches, size, str(pattern))
    return _join([folder for match in matches for folder in _folders(match, size)], size)


def store_folders(paths: Sequence[PathLike]) -> list[Path]:
    """Return the folders of all stores at the given paths: every size and part, complete or not.

    Args:
        paths: Folders of sizes, outputs of encode, or patterns that match such folders; local or URLs.

    Returns:
        The folders in the order of the paths, each once.

    Raises:
        UserError: A path has no store, or a pattern matches no folder.
    """
    found: list[Path] = []
    for path in paths:
        pattern = as_path(path)
        for match in _matches(pattern) if _is_pattern(pattern) else [pattern]:
            found += _all_folders(match)
    return list(dict.fromkeys(found))


def open_each_size(paths: Sequence[PathLike], size: Size | None = None) -> dict[Size, EmbeddingStore]:
    """Open one store for each size at the given paths, in ascending order; parts are joined.

    Args:
        paths: As for `store_folders`.
        size: The only size to open; None for all.

    Raises:
        UserError: A path has no store or an incomplete one, `size` is not there, or parts do not belong together or are
            missing.
    """
    groups: dict[Size, list[EmbeddingStore]] = {}
    for folder in store_folders(paths):
        if size is None or parse_size_folder(folder.name) in (None, size):
            store = EmbeddingStore.open(folder)
            groups.setdefault(store.spec.size, []).append(store)
    if size is not None and size not in groups:
        raise UserError(f"{', '.join(map(str, paths))}: no size {size} there", "`starbucks store info` lists the sizes")
    wanted = sorted(groups) if size is None else [size]
    return {one: EmbeddingStore.join(groups[one]) for one in wanted}


def _is_pattern(path: Path) -> bool:
    return glob.has_magic(str(path)) and not exists(path)


def _matches(pattern: Path) -> list[Path]:
    matches = [match for match in matching(pattern) if is_folder(match)]
    if not matches:
        raise UserError(
            f"no folder matches {pattern}", "check the pattern; quote it so that the shell does not expand it"
        )
    return matches


def _all_folders(path: Path) -> list[Path]:
    sizes, parts = _children(path)
    if path in sizes:
        return sizes
    found = sizes + [folder for part in parts for folder in _all_folders(part)]
    if not found:
        raise _no_store(path)
    return found


def _folders(path: Path, size: Size | None) -> list[Path]:
    sizes, parts = _children(path)
    if path in sizes:
        return sizes
    if parts and sizes:
        raise UserError(f"{path} holds a whole store and parts of one", "name one of the folders inside it")
    if parts:
        return [folder for part in parts for folder in _folders(part, size)]
    if not sizes:
        raise _no_store(path)
    return _of_one_size(sizes, size, str(path))


def _children(path: Path) -> tuple[list[Path], list[Path]]:
    """The folders of sizes and of parts inside `path`; `path` itself as the only one if it is a store."""
    if not exists(path):
        raise UserError(f"no such folder: {path}", "check the path")
    if not is_folder(path):
        raise UserError(f"{path} is a file, an embedding store is a folder", "name the output of encode")
    listed = entries(path)
    if MANIFEST in listed:
        return [path], []
    names = sorted(name for name, length in listed.items() if length is None)
    return [path / name for name in names if parse_size_folder(name)], [
        path / name for name in names if is_part_folder(name)
    ]


def _no_store(path: Path) -> UserError:
    return UserError(f"{path} is not an embedding store: it has no {MANIFEST}", "check the path")


def _of_one_size(folders: list[Path], size: Size | None, path: str) -> list[Path]:
    have = sorted({found for folder in folders if (found := parse_size_folder(folder.name))})
    listed = ", ".join(map(str, have))
    if size is None and len(have) > 1:
        raise UserError(f"{path} holds several sizes: {listed}", "name one with --size, or with --layer and --dim")
    if size is not None and size not in have:
        raise UserError(f"{path} has no size {size}", f"it has {listed}")
    return [folder for folder in folders if size is None or folder.name == size_folder(size)]


def _join(folders: list[Path], size: Size | None) -> EmbeddingStore:
    stores = [EmbeddingStore.open(folder) for folder in folders]
    for folder, store in zip(folders, stores):
        if size is not None and store.spec.size != size:
            raise UserError(f"{folder} has no size {size}", f"it has {store.spec.size}")
    return stores[0] if len(stores) == 1 else EmbeddingStore.join(stores)
