"""Read the weights of a checkpoint: safetensors, or pickles of tensors through torch's restricted reader."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.config import model_file
from starbucks_retrieval.models.modules_json import listed_files
from starbucks_retrieval.models.weight_files import explain_damage

Weights = dict[str, Tensor]


def read_weights(name_or_path: str, subfolder: str = "", stem: str = "model") -> tuple[Weights, list[str]]:
    """Read all weights of a checkpoint.

    Args:
        name_or_path: A folder or hub name.
        subfolder: The folder of the weights in it; empty for the folder itself.
        stem: `model` for a model, `adapter_model` for LoRA adapters.

    Returns:
        Name → tensor on the CPU, and the names of the files that were read. Safetensors are read where there are both.

    Raises:
        UserError: There are no weights, a file is missing or damaged, or a pickle holds anything but tensors. Nothing
            that a pickle names has been executed.
    """
    prefix = f"{subfolder}/" if subfolder else ""
    pickled = "pytorch_model" if stem == "model" else stem
    kinds: tuple[tuple[str, Callable[[str], Weights]], ...] = (
        (f"{stem}.safetensors", _read_safetensors),
        (f"{pickled}.bin", read_pickle),
    )
    for filename, read in kinds:
        names = [filename]
        if model_file(name_or_path, prefix + filename) is None:
            index = model_file(name_or_path, f"{prefix}{filename}.index.json")
            if index is None:
                continue
            names = _shards(index)
        weights: Weights = {}
        for name in names:
            path = model_file(name_or_path, prefix + name)
            if path is None:
                raise UserError(f"{name_or_path} lacks {prefix}{name}", "copy or download the whole checkpoint again")
            found = read(path)
            if twice := sorted(weights.keys() & found.keys()):
                raise UserError(
                    f"{path} holds {twice[0]}, which another shard holds too", "download the checkpoint again"
                )
            weights |= found
        return weights, names
    raise UserError(
        f"{name_or_path} holds neither {prefix}{kinds[0][0]} nor {prefix}{kinds[1][0]}",
        "name the folder of a Hugging Face checkpoint",
    )


def read_pickle(path: str) -> Weights:
    """Read a pickle of tensors, as `torch.save(model.state_dict(), path)` writes it.

    torch's restricted unpickler rebuilds tensors and plain containers only; every other name in the pickle is refused
    before it is imported.

    Args:
        path: The file.

    Raises:
        UserError: The file is damaged, names a function or class, or holds anything but names with their tensors.
    """
    try:
        with warnings.catch_warnings():  # the error says what matters
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "download the file again") from None
    except Exception as error:  # a damaged or hostile pickle can raise anything
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named:
            raise _not_tensors(path, f"names {named[1]}, which no tensor needs") from None
        line = " ".join(str(error).rpartition("WeightsUnpickler error: ")[2].split()) or type(error).__name__
        raise UserError(
            f"{path} is damaged, or not a pickle of tensors: {line[:100]}", "download or write the file again"
        ) from None
    if not isinstance(content, dict) or not content:
        raise _not_tensors(path, f"holds a {type(content).__name__}, not names with their tensors")
    for name, tensor in content.items():
        if type(name) is not str or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise _not_tensors(path, f"holds {str(name)[:60]!r} of type {type(tensor).__name__}, not a plain tensor")
    return {name: tensor.detach() for name, tensor in content.items()}


def _not_tensors(path: str, problem: str) -> UserError:
    return UserError(
        f"{path} {problem}; nothing of it was executed",
        "only weights are converted: write it again with torch.save(model.state_dict()), if you trust where it is from",
    )


def _read_safetensors(path: str) -> Weights:
    from safetensors.torch import load_file

    with explain_damage(path, "download the file again"):
        return load_file(path)


def _shards(index: str) -> list[str]:
    try:
        return listed_files(index)
    except UserError as error:
        raise UserError(f"{index} does not list the files of the weights: {error.what}", error.hint) from None
