"""From what a user names (a size's folder, its parent, a pattern, parts) to one open store."""

from __future__ import annotations

import glob
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.layout import MANIFEST, folder_size, is_part, size_folder
from starbucks_retrieval.store.reader import EmbeddingStore


def open_store(path: str | Path, size: Size | None = None) -> EmbeddingStore:
    """Open a size's folder, an encode output with one or several sizes and parts, or a pattern of those.

    `size` chooses among several sizes. Raises UserError that lists the sizes there are when it is needed, or absent.
    """
    if not Path(path).exists() and glob.has_magic(str(path)):
        return open_stores(str(path), size)
    return _join(_folders(Path(path), size), size)


def open_stores(pattern: str, size: Size | None = None) -> EmbeddingStore:
    """Open all folders that match a pattern such as `emb/part-*` as one store. Raises UserError as `open_store`."""
    matches = [Path(match) for match in sorted(glob.glob(pattern)) if Path(match).is_dir()]
    if not matches:
        raise UserError(f"no folder matches {pattern}", "check the pattern; quote it so that the shell leaves it alone")
    if all(folder_size(match.name) and (match / MANIFEST).exists() for match in matches):
        # `emb/*` matches the sizes of one output: choose among them as if `emb` had been named.
        matches = _of_one_size(matches, size, pattern)
    return _join([folder for match in matches for folder in _folders(match, size)], size)


def _folders(path: Path, size: Size | None) -> list[Path]:
    if not path.exists():
        raise UserError(f"no such folder: {path}", "check the path")
    if not path.is_dir():
        raise UserError(f"{path} is a file, the folder of an embedding store is needed", "name what encode wrote")
    if (path / MANIFEST).exists():
        return [path]
    children = sorted(child for child in path.iterdir() if child.is_dir())
    parts = [child for child in children if is_part(child.name)]
    sizes = [child for child in children if folder_size(child.name)]
    if parts and sizes:
        raise UserError(f"{path} holds a whole store and parts of one", "name the folder that you mean")
    if parts:
        return [folder for part in parts for folder in _folders(part, size)]
    if not sizes:
        raise UserError(f"{path} is not an embedding store: it has no {MANIFEST}", "check the path")
    return _of_one_size(sizes, size, str(path))


def _of_one_size(folders: list[Path], size: Size | None, where: str) -> list[Path]:
    have = sorted({found for folder in folders if (found := folder_size(folder.name))})
    listed = ", ".join(map(str, have))
    if size is None and len(have) > 1:
        raise UserError(f"{where} holds several sizes: {listed}", "name one with --size, or with --layer and --dim")
    if size is not None and size not in have:
        raise UserError(f"{where} has no size {size}", f"it has {listed}")
    return [folder for folder in folders if size is None or folder.name == size_folder(size)]


def _join(folders: list[Path], size: Size | None) -> EmbeddingStore:
    stores = [EmbeddingStore.open(folder) for folder in folders]
    for folder, store in zip(folders, stores):
        if size is not None and store.spec.size != size:
            raise UserError(f"{folder} has no size {size}", f"it has {store.spec.size}")
    return stores[0] if len(stores) == 1 else EmbeddingStore.join(stores)
