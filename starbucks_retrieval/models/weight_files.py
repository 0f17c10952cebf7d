"""The safetensors files of a model."""

from __future__ import annotations

import shutil
from pathlib import Path

from starbucks_retrieval.errors import UserError
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
    """Return the names of the safetensors files of a model. Raises UserError if it has none."""
    if model_file(name_or_path, "model.safetensors"):
        return ["model.safetensors"]
    index = model_file(name_or_path, "model.safetensors.index.json")
    if index is None:
        raise UserError(f"{name_or_path} has no safetensors weights", "save it again with transformers")
    return listed_files(index)
