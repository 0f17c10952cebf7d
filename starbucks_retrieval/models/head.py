"""The Dense and LayerNorm modules of sentence-transformers that follow the pooling of some models.

They belong to the full embedding. At a lower layer the same modules are applied to its pooled output, as in a model of
sentence-transformers that is truncated to that layer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.models.modules_json import HeadModule, model_file, read_head
from starbucks_retrieval.models.weight_files import explain_damage, hash_weights, write_weights

_WEIGHTS = "model.safetensors"


class Dense(nn.Module):
    """A linear map and an activation. Its weights have the names that they have in sentence-transformers.

    Args:
        module: Its settings: the widths, the activation, and whether it has a bias and a residual. Weights are random.
    """

    def __init__(self, module: HeadModule) -> None:
        super().__init__()
        self.linear = nn.Linear(module.inputs, module.width, bias=module.bias)
        self.activation = getattr(nn, module.activation)()
        self.use_residual = module.use_residual
        if module.use_residual and module.inputs != module.width:
            self.residual = nn.Linear(module.inputs, module.width, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return [batch, width] from [batch, inputs]."""
        pooled = pooled.to(self.linear.weight.dtype)
        output = self.activation(self.linear(pooled))
        if self.use_residual:
            output = output + (self.residual(pooled) if hasattr(self, "residual") else pooled)
        return output


class LayerNorm(nn.Module):
    """A layer norm. Its weights have the names that they have in sentence-transformers.

    Args:
        module: Its settings; only the width is used.
    """

    def __init__(self, module: HeadModule) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(module.width)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return [batch, width] from [batch, width]."""
        return self.norm(pooled.to(self.norm.weight.dtype))


class Head(nn.Sequential):
    """The modules after pooling, in their order.

    Args:
        modules: Their settings; the weights are random.

    Example:
        >>> import torch
        >>> head = Head([HeadModule("2_Dense", {"in_features": 4, "out_features": 8})])
        >>> head(torch.ones(1, 4)).shape, head.width
        (torch.Size([1, 8]), 8)
    """

    def __init__(self, modules: Sequence[HeadModule]) -> None:
        super().__init__(*(Dense(module) if module.kind == "Dense" else LayerNorm(module) for module in modules))
        self.settings = tuple(modules)

    @property
    def width(self) -> int:
        """The width of the output."""
        return self.settings[-1].width

    def digest(self) -> bytes:
        """Return a digest of the weights and of the settings that change the output."""
        described = [(module.kind, module.activation, module.use_residual) for module in self.settings]
        hasher = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
        hash_weights(hasher, self.state_dict())
        return hasher.digest()

    def with_weights(self, weights: Mapping[str, Tensor]) -> Head:
        """Return the same modules with other weights, as when they are gathered from several processes."""
        found = Head(self.settings)
        found.load_state_dict({name: weight.float() for name, weight in weights.items()})
        return found

    @property
    def kinds(self) -> list[str]:
        """The type of each module: "Dense" or "LayerNorm"."""
        return [module.kind for module in self.settings]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that `save` writes, named as in sentence-transformers: after 0_Transformer and 1_Pooling."""
        return tuple(f"{number}_{kind}" for number, kind in enumerate(self.kinds, 2))

    def save(self, folder: str | Path) -> list[str]:
        """Write a folder for each module, as sentence-transformers does.

        Args:
            folder: The model folder. `EncoderConfig.head` must name `folders`, and so must modules.json, after the
                pooling.

        Returns:
            The files, relative to the model folder.
        """
        files = []
        for name, module, written in zip(self.folders, self.settings, self):
            write_json(Path(folder) / name / "config.json", module.settings)
            write_weights(Path(folder) / name / _WEIGHTS, written.state_dict())
            files += [f"{name}/config.json", f"{name}/{_WEIGHTS}"]
        return files


def load_head(name_or_path: str, paths: Sequence[str], hidden_size: int) -> Head | None:
    """Read the modules after pooling, in float32; None for a model without any.

    Args:
        name_or_path: A model folder or hub name.
        paths: The folders of the modules, in their order: `EncoderConfig.head`.
        hidden_size: Width of the backbone.

    Raises:
        UserError: A file is missing, damaged or not supported, or holds other weights.
    """
    if not paths:
        return None
    modules = read_head(name_or_path, paths, hidden_size)
    head = Head(modules)
    for settings, module in zip(modules, head):
        module.load_state_dict(_weights(name_or_path, settings, module.state_dict()))
    return head


def _weights(name_or_path: str, module: HeadModule, expected: Mapping[str, Tensor]) -> dict[str, Any]:
    from safetensors.torch import load_file

    path = model_file(name_or_path, f"{module.path}/{_WEIGHTS}")
    if path is None:
        raise UserError(
            f"{name_or_path} lacks {module.path}/{_WEIGHTS}; pickled weights are not read",
            "run starbucks convert on the model",
        )
    with explain_damage(path, "copy the model again"):
        found = load_file(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    if {name: tuple(tensor.shape) for name, tensor in found.items()} != shapes:
        raise UserError(
            f"{path} does not hold the weights that config.json beside it describes", "copy the model again"
        )
    return {name: tensor.float() for name, tensor in found.items()}
