"""The safetensors files of a model, and damaged ones."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from starbucks_retrieval.errors import NO_SPACE, UserError, as_os_error
from starbucks_retrieval.files import atomic_path
from starbucks_retrieval.models.modules_json import listed_files, model_file


def copy_weights(name_or_path: str, folder: str | Path) -> list[str]:
    """Copy the safetensors files of a model, as they are, into a folder.

    Args:
        name_or_path: A folder or hub name.
        folder: An existing folder.

    Returns:
        The names of the files.

    Raises:
        UserError: The model has no safetensors weights.
    """
    names = weight_files(name_or_path)
    if names != ["model.safetensors"]:
        names = ["model.safetensors.index.json", *names]
    for name in names:
        source = model_file(name_or_path, name)
        if source is None:
            raise UserError(f"{name_or_path} lacks {name}", "copy or download the whole model again")
        with atomic_path(Path(folder) / name) as temporary:
            shutil.copyfile(source, temporary)
    return names


def weight_files(name_or_path: str) -> list[str]:
    """Return the names of the safetensors files of a model.

    Args:
        name_or_path: A folder or hub name.

    Returns:
        "model.safetensors" alone, or the files that its index lists, sorted.

    Raises:
        UserError: The model has no safetensors weights, or its index is malformed.
    """
    if model_file(name_or_path, "model.safetensors"):
        return ["model.safetensors"]
    index = model_file(name_or_path, "model.safetensors.index.json")
    if index is None:
        raise UserError(f"{name_or_path} has no safetensors weights", "save it again with transformers")
    return listed_files(index)


@contextlib.contextmanager
def explain_damage(path: str | Path, hint: str) -> Iterator[None]:
    """Turn the exceptions of a library that reads weights from a file into a UserError with the file.

    Args:
        path: The safetensors file that is read in the `with` block.
        hint: The remedy.

    Raises:
        UserError: The block raised any other exception but those of the disk.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = as_os_error(error)
        if found is not None and (found.filename or found.errno in NO_SPACE):
            raise
        if type(error).__name__ == "OutOfMemoryError":  # of a GPU
            raise
        raise UserError(f"{path} is damaged ({type(error).__name__})", hint) from None
