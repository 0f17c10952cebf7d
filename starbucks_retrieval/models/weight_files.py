"""The safetensors files of a model: find, copy and write them, name damaged ones, and digests of weights."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.errors import NO_SPACE, UserError, as_os_error
from starbucks_retrieval.files import atomic_path, atomic_writer
from starbucks_retrieval.models.modules_json import listed_files, model_file


def copy_weights(name_or_path: str, folder: str | Path) -> list[str]:
    """Copy the safetensors files of a model, as they are, into a folder, and return their names.

    Args:
        name_or_path: A folder or hub name.
        folder: An existing folder.

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


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the weights of a module, by name, in float32.

    Args:
        path: The safetensors file, which is written atomically.
        weights: {name: weight}, on any device.
    """
    from safetensors.torch import save

    content = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_writer(path) as file:
        file.write(save(content, metadata={"format": "pt"}))


def hash_weights(hasher: Any, weights: Mapping[str, Tensor]) -> None:
    """Update a hash with weights in the order of their names: each name, its shape, and its numbers in float32.

    Args:
        hasher: An object of hashlib.
        weights: {name: weight}, on any device.
    """
    for name in sorted(weights):
        tensor = weights[name]
        hasher.update(f"{name}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)


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
